import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.spi.ToolProvider;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools, or other programs, in one JVM, one after the other, as Kafka's own tests do.
 *
 * <p>A request on standard input is the number of its texts and the texts: the tool's class, its standard input, its
 * arguments. The class {@code javac} stands for the compiler. A response on standard output is the exit code, and what the tool printed on standard output and on standard
 * error. A number is a 32-bit integer in big-endian order; a text is its length in bytes and its bytes in UTF-8.
 */
public final class ToolServer {
    /** Ends the main method of a tool that calls {@link Exit}. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** A class of its own, because clients before 0.11 have no {@link Exit}. */
    private static final class KafkaExit {
        static void replace() {
            Exit.setExitProcedure((code, message) -> exit(code));
            Exit.setHaltProcedure((code, message) -> exit(code));
            Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        }
    }

    /**
     * A stream of the running tool's bytes. Scala and Log4j keep the streams that they find first, so it stays the same.
     * Threads that an earlier tool has left print nothing: its clients warn that their broker has gone.
     */
    private static final class ToolOutput extends OutputStream {
        private final ByteArrayOutputStream printed = new ByteArrayOutputStream();
        private boolean isOpen;

        @Override
        public synchronized void write(int one) {
            if (isOpen && !left.contains(Thread.currentThread())) {
                printed.write(one);
            }
        }

        @Override
        public synchronized void write(byte[] bytes, int begin, int length) {
            if (isOpen && !left.contains(Thread.currentThread())) {
                printed.write(bytes, begin, length);
            }
        }

        synchronized void setOpen(boolean open) {
            isOpen = open;
        }

        synchronized byte[] take() {
            byte[] bytes = printed.toByteArray();
            printed.reset();
            return bytes;
        }
    }

    private static final String COMPILER = "javac";
    private static final ToolOutput OUTPUT = new ToolOutput();
    private static final ToolOutput ERRORS = new ToolOutput();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static volatile Set<Thread> left = Set.of();
    private static Integer exitCode;

    public static void main(String[] ignored) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        FileOutputStream standardOutput = new FileOutputStream(FileDescriptor.out);
        DataOutputStream responses = new DataOutputStream(new BufferedOutputStream(standardOutput));
        System.setOut(printStream(OUTPUT));
        System.setErr(printStream(ERRORS));
        try {
            KafkaExit.replace();
        } catch (LinkageError absent) {
            // Old clients have no Exit, or one without hooks. They do not call it.
        }
        while (true) {
            String[] request;
            try {
                request = readRequest(requests);
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);
                return;
            }
            int code = run(request);
            responses.writeInt(code);
            for (byte[] printed : new byte[][] {OUTPUT.take(), ERRORS.take()}) {
                responses.writeInt(printed.length);
                responses.write(printed);
            }
            responses.flush();
        }
    }

    private static PrintStream printStream(ToolOutput output) {
        return new PrintStream(output, true, StandardCharsets.UTF_8) {
            @Override
            public void close() { // by a tool: the next one prints, too
                flush();
            }
        };
    }

    private static String[] readRequest(DataInputStream requests) throws IOException {
        String[] texts = new String[requests.readInt()];
        for (int number = 0; number < texts.length; number++) {
            texts[number] = new String(requests.readNBytes(requests.readInt()), StandardCharsets.UTF_8);
        }
        return texts;
    }

    private static void exit(int code) {
        if (exitCode == null) {
            exitCode = code;
            open(false); // a tool that catches the error may print it, and exit again
        }
        throw new Exited();
    }

    private static int run(String[] request) throws ReflectiveOperationException {
        String[] arguments = Arrays.copyOfRange(request, 2, request.length);
        System.setIn(new ByteArrayInputStream(request[1].getBytes(StandardCharsets.UTF_8)));
        exitCode = null;
        left = new HashSet<>(Thread.getAllStackTraces().keySet());
        left.remove(Thread.currentThread());
        open(true);
        boolean failed = false;
        try {
            if (request[0].equals(COMPILER)) {
                exitCode = ToolProvider.findFirst(COMPILER).orElseThrow().run(System.out, System.err, arguments);
            } else {
                Class.forName(request[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            }
        } catch (InvocationTargetException thrown) {
            if (exitCode == null) {
                thrown.getCause().printStackTrace();
                failed = true;
            }
        }
        open(true);
        HOOKS.forEach(Runnable::run); // close a tool's producer, and print what it counted
        HOOKS.clear();
        open(false);
        return exitCode != null ? exitCode : failed ? 1 : 0;
    }

    private static void open(boolean open) {
        System.out.flush();
        System.err.flush();
        OUTPUT.setOpen(open);
        ERRORS.setOpen(open);
    }
}
