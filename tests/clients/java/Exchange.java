import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Passes values on through any kafka-clients since 0.8.2. Words are name=value; values are base64 lines. */
public class Exchange {
    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            int at = word.indexOf('=');
            if (at > 0) options.put(word.substring(0, at), word.substring(at + 1));
        }
        if (options.get("mode").equals("produce")) produce(options);
        else Reading.consume(options);
    }

    static void produce(Map<String, String> options) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("compression.type", options.get("codec"));
        settings.put("acks", "all");
        settings.put("linger.ms", "20");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        List<Future<?>> sent = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            byte[] value = Base64.getDecoder().decode(line);
            sent.add(producer.send(new ProducerRecord<byte[], byte[]>(options.get("topic"), 0, null, value)));
        }
        for (Future<?> one : sent) one.get();
        producer.close();
    }

    /** A class of its own: 0.8.2 has no consumer that could be loaded. */
    static class Reading {
        static void consume(Map<String, String> options) throws Exception {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", options.get("bootstrap"));
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            settings.put("group.id", "exchange");
            settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
            settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
            Consumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
            TopicPartition partition = new TopicPartition(options.get("topic"), 0);
            consumer.assign(Collections.singletonList(partition));
            consumer.seek(partition, 0);
            int left = Integer.parseInt(options.get("count"));
            long deadline = System.currentTimeMillis() + 60000;
            StringBuilder out = new StringBuilder();
            while (left > 0 && System.currentTimeMillis() < deadline)
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(1000))
                    if (left-- > 0) out.append(Base64.getEncoder().encodeToString(record.value())).append('\n');
            System.out.print(out);
            consumer.close();
        }
    }
}
