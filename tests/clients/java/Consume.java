import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Prints records through any kafka-clients since 0.9, whose first consumer it was.
 * Words: bootstrap=, topic=, count=, and partitions= to read all from the start or group= to join and commit.
 * An isolation= is passed on. Lines: partition offset timestamp key value (header name, header value)...
 */
public class Consume {
    static final long TIMEOUT_MS = 60000;

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String word : words) options.put(word.split("=", 2)[0], word.split("=", 2)[1]);
        boolean joins = options.containsKey("group");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (options.containsKey("isolation")) settings.put("isolation.level", options.get("isolation"));
        settings.put("group.id", joins ? options.get("group") : "reads-without-a-group");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        if (joins) consumer.subscribe(Collections.singletonList(options.get("topic")));
        else assign(consumer, options.get("topic"), Integer.parseInt(options.get("partitions")));
        int left = Integer.parseInt(options.get("count"));
        long deadline = System.currentTimeMillis() + TIMEOUT_MS;
        StringBuilder out = new StringBuilder();
        while (left > 0 && System.currentTimeMillis() < deadline)
            for (ConsumerRecord<byte[], byte[]> record : poll(consumer)) {
                left--;
                out.append(line(record)).append('\n');
            }
        if (joins) consumer.commitSync();
        consumer.close();
        System.out.print(out);
    }

    static void assign(KafkaConsumer<byte[], byte[]> consumer, String topic, int partitions) {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < partitions; partition++) all.add(new TopicPartition(topic, partition));
        consumer.assign(all);
        for (TopicPartition partition : all) consumer.seek(partition, 0);
    }

    /** poll(long) until 3, poll(Duration) since 2. */
    @SuppressWarnings("unchecked")
    static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        Object found;
        try {
            Method poll = KafkaConsumer.class.getMethod("poll", long.class);
            found = poll.invoke(consumer, 1000L);
        } catch (NoSuchMethodException newer) {
            Method poll = KafkaConsumer.class.getMethod("poll", java.time.Duration.class);
            found = poll.invoke(consumer, java.time.Duration.ofSeconds(1));
        }
        return (ConsumerRecords<byte[], byte[]>) found;
    }

    static String line(ConsumerRecord<byte[], byte[]> record) throws Exception {
        StringBuilder out = new StringBuilder();
        out.append(record.partition()).append(' ').append(record.offset()).append(' ').append(timestamp(record));
        out.append(' ').append(word(record.key())).append(' ').append(word(record.value()));
        for (Object header : headers(record)) {
            Class<?> kind = Class.forName("org.apache.kafka.common.header.Header");
            out.append(' ').append(word(((String) kind.getMethod("key").invoke(header)).getBytes("UTF-8")));
            out.append(' ').append(word((byte[]) kind.getMethod("value").invoke(header)));
        }
        return out.toString();
    }

    /** -1 before 0.10, which had no timestamps. */
    static long timestamp(ConsumerRecord<byte[], byte[]> record) throws Exception {
        try {
            return (Long) ConsumerRecord.class.getMethod("timestamp").invoke(record);
        } catch (NoSuchMethodException older) {
            return -1;
        }
    }

    /** None before 0.11, which had no headers. */
    static Iterable<?> headers(ConsumerRecord<byte[], byte[]> record) throws Exception {
        try {
            return (Iterable<?>) ConsumerRecord.class.getMethod("headers").invoke(record);
        } catch (NoSuchMethodException older) {
            return Collections.emptyList();
        }
    }

    static String word(byte[] value) {
        return value == null ? "-" : "=" + Base64.getEncoder().encodeToString(value);
    }
}
