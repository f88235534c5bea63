package retried;

import java.nio.charset.StandardCharsets;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.util.backoff.FixedBackOff;

/** A listener whose failed records come back later: see ../../README.md. */
@SpringBootApplication
public class Retried {
    public static void main(String[] arguments) {
        SpringApplication.run(Retried.class, arguments);
    }

    /** Spring's own: it writes a failed record to the topic's "-dlt" at once, and does not wait in the listener. */
    @Bean
    DefaultErrorHandler errorHandler(KafkaTemplate<Object, Object> kafka) {
        return new DefaultErrorHandler(new DeadLetterPublishingRecoverer(kafka), new FixedBackOff(0, 0));
    }

    @KafkaListener(topics = "${topic}", groupId = "${topic}-billing", properties = "auto.offset.reset=earliest")
    void onPayment(String body, @Header(name = "x-retry-attempt", required = false) byte[] header) {
        int attempt = header == null ? 0 : Integer.parseInt(new String(header, StandardCharsets.UTF_8));
        System.out.printf("%s: attempt %d at %.3f%n", body, attempt, System.currentTimeMillis() / 1000.0);
        if (attempt < 2) {
            throw new IllegalStateException("no answer");
        }
    }
}
