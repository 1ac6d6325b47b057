// A program for segmentio's kafka-go: reads one question in JSON on standard input and prints the answer in JSON.
// Run by tests.support.toolchains.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

const timeout = 60 * time.Second

type question struct {
	Bootstrap  string `json:"bootstrap"`
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"`
	Count      int    `json:"count"`
}

var codecs = []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var asked question
	check(json.NewDecoder(os.Stdin).Decode(&asked))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := kafka.DialContext(ctx, "tcp", asked.Bootstrap)
	check(err)
	topic := kafka.TopicConfig{Topic: asked.Topic, NumPartitions: asked.Partitions, ReplicationFactor: 1}
	check(conn.CreateTopics(topic))
	for _, codec := range codecs {
		produce(ctx, asked, codec)
	}
	values := consume(ctx, asked)
	answer := map[string]any{"values": values, "committed": committed(ctx, asked), "lag": lag(ctx, asked)}
	check(conn.DeleteTopics(asked.Topic))
	check(json.NewEncoder(os.Stdout).Encode(answer))
}

// produce writes count records in one batch a partition.
func produce(ctx context.Context, asked question, codec kafka.Compression) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(asked.Bootstrap), Topic: asked.Topic, Balancer: &kafka.Hash{}, Compression: codec,
		RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
	}
	messages := make([]kafka.Message, asked.Count)
	for i := range messages {
		key, name := strconv.Itoa(i), strconv.Itoa(int(codec))
		headers := []kafka.Header{{Key: "codec", Value: []byte(name)}}
		messages[i] = kafka.Message{Key: []byte(key), Value: []byte(name + ":" + key), Headers: headers}
	}
	check(writer.WriteMessages(ctx, messages...))
	check(writer.Close())
}

// consume reads everything as the one member of a group, which commits what it reads.
func consume(ctx context.Context, asked question) []string {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{asked.Bootstrap}, GroupID: asked.Topic, Topic: asked.Topic, MaxWait: 100 * time.Millisecond,
	})
	var values []string
	for len(values) < asked.Count*len(codecs) {
		message, err := reader.ReadMessage(ctx)
		check(err)
		if len(message.Headers) != 1 || message.Headers[0].Key != "codec" {
			check(fmt.Errorf("headers %v of offset %d", message.Headers, message.Offset))
		}
		values = append(values, string(message.Value))
	}
	check(reader.Close())
	return values
}

func committed(ctx context.Context, asked question) int64 {
	client := &kafka.Client{Addr: kafka.TCP(asked.Bootstrap)}
	partitions := make([]int, asked.Partitions)
	for i := range partitions {
		partitions[i] = i
	}
	request := &kafka.OffsetFetchRequest{GroupID: asked.Topic, Topics: map[string][]int{asked.Topic: partitions}}
	answered, err := client.OffsetFetch(ctx, request)
	check(err)
	check(answered.Error)
	var sum int64
	for _, partition := range answered.Topics[asked.Topic] {
		sum += partition.CommittedOffset
	}
	return sum
}

// lag is what a reader without a group has before it that begins an hour ago.
func lag(ctx context.Context, asked question) int64 {
	var sum int64
	for partition := range asked.Partitions {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{asked.Bootstrap}, Topic: asked.Topic, Partition: partition, MaxWait: 100 * time.Millisecond,
		})
		check(reader.SetOffsetAt(ctx, time.Now().Add(-time.Hour)))
		behind, err := reader.ReadLag(ctx)
		check(err)
		sum += behind
		check(reader.Close())
	}
	return sum
}
