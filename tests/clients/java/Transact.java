import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Commits one transaction and aborts another through any kafka-clients since 0.11. Words: bootstrap=, topic=. */
public class Transact {
    public static void main(String[] words) {
        String topic = words[1].split("=", 2)[1];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0].split("=", 2)[1]);
        settings.put("transactional.id", topic);
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        send(producer, topic, "dropped");
        producer.abortTransaction();
        send(producer, topic, "kept");
        producer.commitTransaction();
        producer.close();
    }

    static void send(KafkaProducer<byte[], byte[]> producer, String topic, String value) {
        producer.beginTransaction();
        for (int partition = 0; partition < 3; partition++)
            producer.send(new ProducerRecord<byte[], byte[]>(topic, partition, null, value.getBytes(StandardCharsets.UTF_8)));
        producer.flush();
    }
}
