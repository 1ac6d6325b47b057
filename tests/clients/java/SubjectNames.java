import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;

/** Reads subjects in DER form, in hex, one a line; prints each one's RFC 2253 name in hex of its UTF-8. */
public class SubjectNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, "US-ASCII"));
        PrintStream output = new PrintStream(System.out, false, "US-ASCII");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String name = new X500Principal(HexFormat.of().parseHex(line)).getName();
            output.println(HexFormat.of().formatHex(name.getBytes("UTF-8")));
        }
        output.flush();
    }
}
