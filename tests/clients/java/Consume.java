import java.util.Base64;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** Prints values of partition 0 as base64 lines through any kafka-clients since 0.10: BOOTSTRAP TOPIC COUNT. */
public class Consume {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("group.id", "reads-without-a-group");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        TopicPartition partition = new TopicPartition(words[1], 0);
        consumer.assign(Collections.singletonList(partition));
        consumer.seek(partition, 0);
        int left = Integer.parseInt(words[2]);
        long deadline = System.currentTimeMillis() + 60000;
        StringBuilder out = new StringBuilder();
        while (left > 0 && System.currentTimeMillis() < deadline)
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(1000))
                if (left-- > 0) out.append(Base64.getEncoder().encodeToString(record.value())).append('\n');
        System.out.print(out);
        consumer.close();
    }
}
