package retried;

import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.Binding.DestinationType;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.handler.annotation.Header;

/** A listener whose failed messages come back later: see ../../README.md. */
@SpringBootApplication
public class Retried {
    public static void main(String[] arguments) {
        SpringApplication.run(Retried.class, arguments);
    }

    /** The two arguments are all that postdate needs. */
    @Bean
    Queue work() {
        return QueueBuilder.durable("orders.work")
                .deadLetterExchange("postdate.retry").deadLetterRoutingKey("work_retry").build();
    }

    @Bean
    Binding toWork() {
        return new Binding("orders.work", DestinationType.QUEUE, "orders", "order.work", null);
    }

    @RabbitListener(queues = "orders.work")
    void work(String body, @Header(name = "x-retry-attempt", defaultValue = "0") long attempt) {
        System.out.printf("%s: attempt %d at %.3f%n", body, attempt, System.currentTimeMillis() / 1000.0);
        if (attempt < 2) {
            throw new AmqpRejectAndDontRequeueException("no connection");
        }
    }
}
