// One delayed record with franz-go: go run . 127.0.0.1:9092 payments.delay 15m
package main

import (
	"context"
	"log"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, intake, delay := os.Args[1], os.Args[2], os.Args[3]
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	record := &kgo.Record{
		Topic:   intake,
		Key:     []byte("order-1"),
		Value:   []byte("franz-go"),
		Headers: []kgo.RecordHeader{{Key: "x-delay", Value: []byte(delay)}},
	}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		log.Fatal(err)
	}
}
