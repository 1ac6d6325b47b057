import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

/**
 * Asks Kafka's own classes: "errors", "headers" of stable versions, "all-headers", or "messages" (lines of class, version
 * and hexadecimal bytes in). Uses only what Kafka 3.9 and 4.3 both have.
 */
public class KafkaProtocol {
    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "errors" -> errors();
            case "headers" -> headers(false);
            case "all-headers" -> headers(true);
            default -> messages();
        }
    }

    private static void errors() {
        for (Errors error : Errors.values()) {
            ApiException exception = error.exception();
            System.out.println(error.code() + " " + error.name() + " " + (exception instanceof RetriableException));
        }
    }

    private static void headers(boolean unstable) {
        for (ApiKeys key : ApiKeys.values()) {
            for (short version = key.oldestVersion(); version <= key.latestVersion(unstable); version++) {
                System.out.println(key.id + " " + version + " " + key.requestHeaderVersion(version) + " "
                    + key.responseHeaderVersion(version));
            }
        }
    }

    /** Each message is read and written again by Kafka; what it wrote is printed, or why it could not. */
    private static void messages() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder output = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            output.append(roundTrip(parts[0], Short.parseShort(parts[1]), HexFormat.of().parseHex(parts[2]))).append('\n');
        }
        System.out.print(output);
    }

    private static String roundTrip(String name, short version, byte[] bytes) {
        try {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            Class<?> type = Class.forName("org.apache.kafka.common.message." + name);
            Message message = (Message) type.getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining()) return "error: " + buffer.remaining() + " bytes left";
            ObjectSerializationCache cache = new ObjectSerializationCache();
            byte[] result = new byte[message.size(cache, version)];
            message.write(new ByteBufferAccessor(ByteBuffer.wrap(result)), cache, version);
            return HexFormat.of().formatHex(result);
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return "error: " + cause;
        }
    }
}
