package postdate.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Header;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class DelayInterceptorTest {
    private static DelayInterceptor<String, String> configured(Map<String, ?> settings) {
        DelayInterceptor<String, String> interceptor = new DelayInterceptor<>();
        interceptor.configure(settings);
        return interceptor;
    }

    private static ProducerRecord<String, String> record(String topic, Integer partition, String... headers) {
        ProducerRecord<String, String> record = new ProducerRecord<>(topic, partition, 1234L, "key", "value");
        for (String name : headers) {
            record.headers().add(name, name.getBytes(StandardCharsets.UTF_8));
        }
        return record;
    }

    private static String topic(Map<String, ?> settings, String topic) {
        return configured(settings).onSend(record(topic, null, "x-delay")).topic();
    }

    @ParameterizedTest
    @ValueSource(strings = {"x-delay", "x-deliver-at", "x-delay-level", "x-delay-cancel", "x-delay-to"})
    void aRecordWithADelayHeaderGoesToTheIntakeTopicAsItIs(String name) {
        ProducerRecord<String, String> given = record("orders", null, "a", name, "a");
        ProducerRecord<String, String> sent = configured(Map.of()).onSend(given);
        assertEquals("orders.delay", sent.topic());
        assertEquals(given.key(), sent.key());
        assertEquals(given.value(), sent.value());
        assertEquals(1234L, sent.timestamp());
        assertArrayEquals(given.headers().toArray(), sent.headers().toArray());
    }

    @Test
    void aRecordWithoutOneIsLeftAlone() {
        for (String[] names : List.of(new String[0], new String[] {"x-delay-key", "X-Delay", "trace"})) {
            ProducerRecord<String, String> given = record("orders", 3, names);
            assertSame(given, configured(Map.of()).onSend(given));
        }
    }

    @Test
    void nullsAndMissingTimesStayWhatTheyAre() {
        ProducerRecord<String, String> given = new ProducerRecord<>("orders", null);
        given.headers().add("x-delay", null);
        ProducerRecord<String, String> sent = configured(Map.of()).onSend(given);
        assertEquals("orders.delay", sent.topic());
        assertNull(sent.timestamp());
        assertNull(sent.key());
        assertNull(sent.value());
        assertNull(sent.headers().lastHeader("x-delay").value());
    }

    @Test
    void aHeaderWithoutANameDoesNoHarm() {
        Header nameless = new Header() {
            @Override
            public String key() {
                return null;
            }

            @Override
            public byte[] value() {
                return null;
            }
        };
        ProducerRecord<String, String> given = new ProducerRecord<>("orders", "value");
        given.headers().add(nameless);
        assertSame(given, configured(Map.of()).onSend(given));
    }

    @Test
    void aPartitionIsKeptOnlyWhereThatIsWanted() {
        ProducerRecord<String, String> given = record("orders", 3, "x-delay");
        assertNull(configured(Map.of()).onSend(given).partition());
        Map<String, ?> keeping = Map.of(DelayInterceptor.KEEP_PARTITION, "true");
        assertEquals(3, configured(keeping).onSend(given).partition());
        assertNull(configured(keeping).onSend(record("orders", null, "x-delay")).partition());
    }

    @Test
    void theRuleIsConfigurableAndLeavesIntakeTopicsAlone() {
        assertEquals("orders.delay", topic(Map.of(), "orders.delay"));
        Map<String, ?> rule = Map.of(DelayInterceptor.INTAKE, "later.*.in");
        assertEquals("later.orders.in", topic(rule, "orders"));
        assertEquals("later.orders.in", topic(rule, "later.orders.in"));
    }

    @Test
    void aMappingNamesTheTopicsThatAreDelayedAndNoOthers() {
        Map<String, ?> mapping = Map.of(DelayInterceptor.INTAKE, "orders:wait, payments : pay-later");
        assertEquals("wait", topic(mapping, "orders"));
        assertEquals("pay-later", topic(mapping, "payments"));
        assertEquals("invoices", topic(mapping, "invoices"));
    }

    @Test
    void aTopicThatTheListLeavesOutIsWarnedOfOnce() {
        DelayInterceptor<String, String> interceptor =
                configured(Map.of(DelayInterceptor.INTAKE, "orders:wait,payments:pay-later"));
        String told = logged(() -> {
            for (String topic : List.of("orders", "invoices", "wait", "invoices", "refunds", "invoices")) {
                interceptor.onSend(record(topic, null, "x-delay"));
            }
            interceptor.onSend(record("undelayed", null, "trace"));
        });
        assertEquals(2, told.lines().count(), told);
        assertTrue(told.lines().allMatch(line -> line.contains("WARN") && line.contains("not delayed")), told);
        assertTrue(told.contains("\"invoices\"") && told.contains("\"refunds\""), told);
    }

    @Test
    void aRuleLeavesNothingOutAndWarnsOfNothing() {
        assertEquals("", logged(() -> topic(Map.of(), "orders.delay")));
    }

    /** What is written to the log meanwhile: slf4j-simple writes to standard error. */
    private static String logged(Runnable work) {
        PrintStream before = System.err;
        ByteArrayOutputStream told = new ByteArrayOutputStream();
        System.setErr(new PrintStream(told, true, StandardCharsets.UTF_8));
        try {
            work.run();
        } finally {
            System.setErr(before);
        }
        return told.toString(StandardCharsets.UTF_8);
    }

    @Test
    void theHeadersAreConfigurable() {
        DelayInterceptor<String, String> interceptor = configured(Map.of(DelayInterceptor.HEADERS, "eta,DELAY"));
        assertEquals("orders.delay", interceptor.onSend(record("orders", null, "eta")).topic());
        assertEquals("orders", interceptor.onSend(record("orders", null, "x-delay")).topic());
    }

    @Test
    void anEmptyListOfHeadersKeepsTheProducerFromStarting() {
        assertThrows(ConfigException.class, () -> configured(Map.of(DelayInterceptor.HEADERS, "")));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "*", "*.*", "delay", "orders:", ":wait", "a:b:c", "*.delay,orders:wait", "*:delay"})
    void anIntakeThatIsNeitherRuleNorMappingKeepsTheProducerFromStarting(String intake) {
        assertThrows(ConfigException.class, () -> configured(Map.of(DelayInterceptor.INTAKE, intake)));
    }
}
