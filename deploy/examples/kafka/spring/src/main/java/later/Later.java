package later;

import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;

/** One delayed record with Spring Kafka, and the listener that receives it: see ../../README.md. */
@SpringBootApplication
public class Later {
    public static void main(String[] arguments) {
        SpringApplication.run(Later.class, arguments);
    }

    @Bean
    CommandLineRunner produce(
            KafkaTemplate<String, String> kafka, @Value("${intake}") String intake, @Value("${delay}") String delay) {
        return arguments -> {
            ProducerRecord<String, String> record = new ProducerRecord<>(intake, "order-1", "spring");
            record.headers().add("x-delay", delay.getBytes(StandardCharsets.UTF_8));
            kafka.send(record).get();
        };
    }

    /** Unchanged: it names the topic of the consumers. */
    @KafkaListener(topics = "${topic}", groupId = "billing", properties = "auto.offset.reset=earliest")
    void onPayment(String body) {
        System.out.println("arrived: " + body);
    }
}
