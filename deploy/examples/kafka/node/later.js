// One delayed record with kafkajs: node later.js 127.0.0.1:9092 payments.delay 15m
import { Kafka, Partitioners } from "kafkajs";

const [servers, intake, delay] = process.argv.slice(2);
const kafka = new Kafka({ brokers: servers.split(",") });
// The default since kafkajs 2. It chooses partitions as Java does; LegacyPartitioner does not.
const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
await producer.connect();
await producer.send({
  topic: intake,
  acks: -1,
  messages: [{ key: "order-1", value: "kafkajs", headers: { "x-delay": delay } }],
});
await producer.disconnect();
