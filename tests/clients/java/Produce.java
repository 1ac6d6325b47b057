import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Sends base64 lines to partition 0 through any kafka-clients since 0.8.2: BOOTSTRAP TOPIC CODEC. */
public class Produce {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("compression.type", words[2]);
        settings.put("acks", "all");
        settings.put("linger.ms", "20");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        List<Future<?>> sent = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            byte[] value = Base64.getDecoder().decode(line);
            sent.add(producer.send(new ProducerRecord<byte[], byte[]>(words[1], 0, null, value)));
        }
        for (Future<?> one : sent) one.get();
        producer.close();
    }
}
