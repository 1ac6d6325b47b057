import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs Apache Kafka's command-line tools in one JVM, which would otherwise start once for each.
 *
 * One line of standard input is one call: class name and arguments, separated by tabs. What a tool prints goes to standard
 * output between the lines "<<" and ">> code"; a tool that wants to exit ends its call, not the JVM.
 */
public class GroupTools {
    static final class Exit extends RuntimeException {
        final int code;

        Exit(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] arguments) throws Exception {
        org.apache.kafka.common.utils.Exit.setExitProcedure((code, message) -> { throw new Exit(code); });
        org.apache.kafka.common.utils.Exit.setHaltProcedure((code, message) -> { throw new Exit(code); });
        PrintStream out = System.out;
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            List<String> words = new ArrayList<>(List.of(line.split("\t", -1)));
            String tool = words.remove(0);
            out.println("<<");
            out.println(">> " + run(tool, words.toArray(new String[0])));
            out.flush();
        }
    }

    static int run(String tool, String[] arguments) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (error.getCause() instanceof Exit exit) {
                return exit.code;
            }
            error.getCause().printStackTrace(System.out);
            return 1;
        }
    }
}
