import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** One delayed record: java -cp 'target/dependency/*' Later.java 127.0.0.1:9092 payments.delay 15m */
public final class Later {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("acks", "all");
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            ProducerRecord<String, String> record = new ProducerRecord<>(arguments[1], "order-1", "java");
            record.headers().add("x-delay", arguments[2].getBytes(StandardCharsets.UTF_8));
            producer.send(record).get();
        }
    }
}
