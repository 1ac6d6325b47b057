import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs nodes of Kafka as threads of one JVM, as Kafka's own tests do.
 *
 * <p>A request is a line on standard input: a verb, a space, and the path of a node's server.properties. {@code start}
 * starts a node, {@code stop} begins the orderly stop that SIGTERM causes, {@code state} does nothing. The response is a
 * line on standard output: the state of the node, {@code running}, {@code stopped} or {@code failed}. Nodes log to standard
 * error. All nodes end without a stop when standard input ends.
 */
public final class NodeServer {
    /** Ends the main method of a node that calls {@link Exit}. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** A thread that runs Kafka's main method. */
    private static final class Node extends Thread {
        private final String properties;
        private final List<Runnable> shutdownHooks = new CopyOnWriteArrayList<>();
        private volatile boolean failed;

        Node(String properties) {
            super("node " + properties);
            this.properties = properties;
        }

        @Override
        public void run() {
            try {
                Class<?> kafka = Class.forName("kafka.Kafka");
                kafka.getMethod("main", String[].class).invoke(null, (Object) new String[] {properties});
            } catch (InvocationTargetException thrown) {
                if (!(thrown.getCause() instanceof Exited)) {
                    fail(thrown.getCause());
                }
            } catch (ReflectiveOperationException absent) {
                fail(absent);
            }
        }

        private void fail(Throwable cause) {
            failed = true;
            cause.printStackTrace();
        }

        void beginStop() {
            Thread stopping = new Thread(() -> shutdownHooks.forEach(Runnable::run), "stop " + properties);
            stopping.setDaemon(true);
            stopping.start();
        }

        String state() {
            return isAlive() ? "running" : failed ? "failed" : "stopped";
        }
    }

    private static final Map<String, Node> NODES = new ConcurrentHashMap<>();

    public static void main(String[] ignored) throws Exception {
        PrintStream responses = System.out;
        System.setOut(System.err);
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> {
            if (Thread.currentThread() instanceof Node) {
                ((Node) Thread.currentThread()).shutdownHooks.add(hook);
            }
        });
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            responses.println(answer(line.split(" ", 2)));
            responses.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String answer(String[] request) {
        String properties = request[1];
        if (request[0].equals("start")) {
            Node node = new Node(properties);
            NODES.put(properties, node);
            node.start();
        } else if (request[0].equals("stop")) {
            NODES.get(properties).beginStop();
        }
        return NODES.get(properties).state();
    }

    private static void exit(int code) {
        if (code != 0 && Thread.currentThread() instanceof Node) {
            ((Node) Thread.currentThread()).failed = true;
        }
        throw new Exited();
    }
}
