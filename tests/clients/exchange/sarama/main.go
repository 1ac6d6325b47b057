// Passes values on through sarama. Its argument is a JSON object, values are base64 lines.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
)

type options struct {
	Bootstrap, Topic, Mode, Codec string
	Count                         int
}

func main() {
	var asked options
	if err := json.Unmarshal([]byte(os.Args[1]), &asked); err != nil {
		log.Fatal(err)
	}
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	if asked.Mode == "produce" {
		produce(asked, config)
	} else {
		consume(asked, config)
	}
}

func produce(asked options, config *sarama.Config) {
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	if err := config.Producer.Compression.UnmarshalText([]byte(asked.Codec)); err != nil {
		log.Fatal(err)
	}
	producer, err := sarama.NewSyncProducer([]string{asked.Bootstrap}, config)
	if err != nil {
		log.Fatal(err)
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		value, err := base64.StdEncoding.DecodeString(lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		messages = append(messages, &sarama.ProducerMessage{Topic: asked.Topic, Value: sarama.ByteEncoder(value)})
	}
	if err := producer.SendMessages(messages); err != nil {
		log.Fatal(err)
	}
}

func consume(asked options, config *sarama.Config) {
	consumer, err := sarama.NewConsumer([]string{asked.Bootstrap}, config)
	if err != nil {
		log.Fatal(err)
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(asked.Topic, 0, sarama.OffsetOldest)
	if err != nil {
		log.Fatal(err)
	}
	for i := 0; i < asked.Count; i++ {
		select {
		case message := <-partition.Messages():
			fmt.Println(base64.StdEncoding.EncodeToString(message.Value))
		case <-time.After(30 * time.Second):
			log.Fatalf("nothing more after %d messages", i)
		}
	}
}
