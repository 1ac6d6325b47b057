import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/**
 * Kafka's own record classes as the oracle: `write DIR` builds a set of every magic and codec, `read DIR` prints what it
 * finds in the sets somebody else has built, one line per record.
 */
public class RecordFormats {
    private static final int COUNT = 2000;

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[1]);
        for (byte magic = 0; magic <= 2; magic++)
            for (CompressionType codec : CompressionType.values())
                if (magic == 2 || codec.id <= CompressionType.LZ4.id) {
                    Path file = directory.resolve(magic + "-" + codec.id);
                    if (arguments[0].equals("write"))
                        Files.write(file, write(magic, codec));
                    else
                        Files.write(directory.resolve(file.getFileName() + ".txt"), read(file));
                }
    }

    private static byte[] write(byte magic, CompressionType codec) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), magic,
            Compression.of(codec).build(), TimestampType.CREATE_TIME, 100);
        for (int i = 0; i < COUNT; i++) {
            byte[] key = i % 7 == 0 ? null : ("key-" + i).getBytes(StandardCharsets.UTF_8);
            byte[] value = i % 11 == 0 ? null : ("value-" + i * 7919L % 1000).repeat(5).getBytes(StandardCharsets.UTF_8);
            Header[] headers = magic == 2 && i % 3 == 0
                ? new Header[] {new RecordHeader("h", new byte[] {1, 2}), new RecordHeader("null", null)}
                : Record.EMPTY_HEADERS;
            builder.appendWithOffset(100 + i, 1_700_000_000_000L + i * 37 % 1000, key, value, headers);
        }
        ByteBuffer buffer = builder.build().buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    private static List<String> read(Path file) throws Exception {
        List<String> lines = new ArrayList<>();
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file))).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                StringBuilder headers = new StringBuilder();
                for (Header header : record.headers())
                    headers.append(header.key()).append('=').append(text(header.value() == null ? null : ByteBuffer.wrap(header.value())));
                lines.add(record.offset() + " " + record.timestamp() + " " + text(record.key()) + " " + text(record.value())
                    + " " + headers);
            }
        }
        return lines;
    }

    private static String text(ByteBuffer bytes) {
        if (bytes == null)
            return "-";
        return StandardCharsets.ISO_8859_1.decode(bytes.duplicate()).toString();
    }
}
