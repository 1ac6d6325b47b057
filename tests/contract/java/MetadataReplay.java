import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.image.writer.ImageWriter;
import org.apache.kafka.image.writer.ImageWriterOptions;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Kafka's replay of metadata records as the oracle. A line of standard input has records in base64; `|` stands between
 * those of two images. The line's answer has the records of the last image.
 */
public class MetadataReplay {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            MetadataImage image = MetadataImage.EMPTY;
            for (String group : line.split("\\|"))
                image = after(image, group.trim().split(" "));
            System.out.println(String.join(" ", recordsOf(image)));
        }
    }

    private static MetadataImage after(MetadataImage image, String[] words) {
        MetadataDelta delta = new MetadataDelta.Builder().setImage(image)
            .setSupportedConfigChecker((type, name) -> true).build();
        for (String word : words) {
            byte[] frame = Base64.getDecoder().decode(word);
            ByteBufferAccessor readable = new ByteBufferAccessor(ByteBuffer.wrap(frame));
            delta.replay(MetadataRecordSerde.INSTANCE.read(readable, frame.length).message());
        }
        return delta.apply(new MetadataProvenance(1, 1, 1000, true));
    }

    private static List<String> recordsOf(MetadataImage image) {
        List<String> words = new ArrayList<>();
        image.write(new ImageWriter() {
            @Override
            public void write(ApiMessageAndVersion record) {
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer frame = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
                MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(frame));
                words.add(Base64.getEncoder().encodeToString(frame.array()));
            }

            @Override
            public void close(boolean complete) {
            }
        }, new ImageWriterOptions.Builder(image).setLossHandler(loss -> { }).build());
        return words;
    }
}
