// A program for sarama: reads one question in JSON on standard input and prints the answer in JSON.
// Run by tests.support.toolchains.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const timeout = 60 * time.Second

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

type record struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

type question struct {
	Bootstrap     string   `json:"bootstrap"`
	Mode          string   `json:"mode"`
	Topic         string   `json:"topic"`
	Source        string   `json:"source"`
	Group         string   `json:"group"`
	Codec         string   `json:"codec"`
	Version       string   `json:"version"`
	Partitions    int32    `json:"partitions"`
	Count         int      `json:"count"`
	ReadCommitted bool     `json:"read_committed"`
	Records       []record `json:"records"`
	Security      security `json:"security"`
}

type answer map[string]any

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var asked question
	check(json.NewDecoder(os.Stdin).Decode(&asked))
	time.AfterFunc(timeout, func() { check(fmt.Errorf("%s took more than %s", asked.Mode, timeout)) })
	modes := map[string]func(question) answer{
		"produce": produce, "consume": consume, "group": group, "admin": admin, "transactions": transactions,
		"ping": ping,
	}
	check(json.NewEncoder(os.Stdout).Encode(modes[asked.Mode](asked)))
}

func settings(asked question) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	if asked.Version != "" {
		version, err := sarama.ParseKafkaVersion(asked.Version)
		check(err)
		config.Version = version
		config.ApiVersionsRequest = false
	}
	if asked.Codec != "" {
		check(config.Producer.Compression.UnmarshalText([]byte(asked.Codec)))
	}
	asked.Security.apply(config)
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	if asked.ReadCommitted {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	return config
}

func message(one record, topic string) *sarama.ProducerMessage {
	sent := &sarama.ProducerMessage{Topic: topic, Partition: one.Partition}
	if one.Key != nil {
		sent.Key = sarama.ByteEncoder(one.Key)
	}
	if one.Value != nil {
		sent.Value = sarama.ByteEncoder(one.Value)
	}
	for _, each := range one.Headers {
		sent.Headers = append(sent.Headers, sarama.RecordHeader{Key: []byte(each.Key), Value: each.Value})
	}
	return sent
}

func received(one *sarama.ConsumerMessage) record {
	found := record{one.Partition, one.Offset, -1, one.Key, one.Value, []header{}}
	if !one.Timestamp.IsZero() {
		found.Timestamp = one.Timestamp.UnixMilli()
	}
	for _, each := range one.Headers {
		found.Headers = append(found.Headers, header{string(each.Key), each.Value})
	}
	return found
}

func producer(asked question, config *sarama.Config) sarama.SyncProducer {
	made, err := sarama.NewSyncProducer([]string{asked.Bootstrap}, config)
	check(err)
	return made
}

func produce(asked question) answer {
	config := settings(asked)
	if config.Version.IsAtLeast(sarama.V0_11_0_0) {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	sender := producer(asked, config)
	messages := []*sarama.ProducerMessage{}
	for _, one := range asked.Records {
		messages = append(messages, message(one, asked.Topic))
	}
	err := sender.SendMessages(messages)
	var refused sarama.ProducerErrors
	if errors.As(err, &refused) {
		err = refused[0].Err
	}
	check(err)
	check(sender.Close())
	return answer{}
}

func consume(asked question) answer {
	consumer, err := sarama.NewConsumer([]string{asked.Bootstrap}, settings(asked))
	check(err)
	messages := make(chan *sarama.ConsumerMessage)
	for partition := range asked.Partitions {
		reader, err := consumer.ConsumePartition(asked.Topic, partition, sarama.OffsetOldest)
		check(err)
		go func() {
			for one := range reader.Messages() {
				messages <- one
			}
		}()
	}
	found := []record{}
	for len(found) < asked.Count {
		found = append(found, received(<-messages))
	}
	return answer{"records": found}
}

// What the members of a group have seen together.
type seen struct {
	lock    sync.Mutex
	records []record
	owned   map[string][]int32
}

// One member of the group.
type member struct {
	name  string
	seen  *seen
	topic string
}

func (m member) Setup(session sarama.ConsumerGroupSession) error {
	m.seen.lock.Lock()
	defer m.seen.lock.Unlock()
	m.seen.owned[m.name] = session.Claims()[m.topic]
	return nil
}

// Sarama calls this before the member joins the next generation.
func (m member) Cleanup(sarama.ConsumerGroupSession) error {
	m.seen.lock.Lock()
	defer m.seen.lock.Unlock()
	delete(m.seen.owned, m.name)
	return nil
}

func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for one := range claim.Messages() {
		session.MarkMessage(one, "")
		m.seen.lock.Lock()
		m.seen.records = append(m.seen.records, received(one))
		m.seen.lock.Unlock()
	}
	return nil
}

// The partitions of both members in one generation; nil until both have some and all records are read.
func (s *seen) complete(count int) [][]int32 {
	s.lock.Lock()
	defer s.lock.Unlock()
	first, second := s.owned["first"], s.owned["second"]
	if len(s.records) < count || len(first) == 0 || len(second) == 0 {
		return nil
	}
	return [][]int32{first, second}
}

// Two members read the topic until each owns something and together they read all; then they leave.
func group(asked question) answer {
	found := &seen{records: []record{}, owned: map[string][]int32{}}
	ctx, stop := context.WithCancel(context.Background())
	var left sync.WaitGroup
	for _, name := range []string{"first", "second"} {
		joined, err := sarama.NewConsumerGroup([]string{asked.Bootstrap}, asked.Group, settings(asked))
		check(err)
		left.Go(func() {
			for ctx.Err() == nil {
				check(joined.Consume(ctx, []string{asked.Topic}, member{name, found, asked.Topic}))
			}
			check(joined.Close())
		})
	}
	owned := found.complete(asked.Count)
	for owned == nil {
		time.Sleep(20 * time.Millisecond)
		owned = found.complete(asked.Count)
	}
	stop()
	left.Wait()
	return answer{"records": found.records, "owned": owned}
}

func admin(asked question) answer {
	admin, err := sarama.NewClusterAdmin([]string{asked.Bootstrap}, settings(asked))
	check(err)
	retention := "7000"
	detail := &sarama.TopicDetail{
		NumPartitions: 3, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention},
	}
	check(admin.CreateTopic(asked.Topic, detail, false))
	found := answer{"again": fmt.Sprint(admin.CreateTopic(asked.Topic, detail, false))}
	configs, err := admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: asked.Topic, ConfigNames: []string{"retention.ms"},
	})
	check(err)
	found["retention"] = configs[0].Value
	check(admin.CreatePartitions(asked.Topic, 4, nil, false))
	topics, err := admin.DescribeTopics([]string{asked.Topic})
	check(err)
	found["partitions"] = len(topics[0].Partitions)
	check(admin.DeleteTopic(asked.Topic))
	check(admin.Close())
	return found
}

// Passes the source on in one transaction together with its offsets, then aborts a second one.
func transactions(asked question) answer {
	config := settings(asked)
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = asked.Group
	config.Net.MaxOpenRequests = 1
	sender := producer(asked, config)
	source := asked
	source.Topic = asked.Source
	records := consume(source)["records"].([]record)
	check(sender.BeginTxn())
	messages := []*sarama.ProducerMessage{}
	ends := map[int32]int64{}
	for _, one := range records {
		messages = append(messages, message(one, asked.Topic))
		ends[one.Partition] = max(ends[one.Partition], one.Offset+1)
	}
	check(sender.SendMessages(messages))
	offsets := []*sarama.PartitionOffsetMetadata{}
	for partition, end := range ends {
		offsets = append(offsets, &sarama.PartitionOffsetMetadata{Partition: partition, Offset: end})
	}
	check(sender.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{asked.Source: offsets}, asked.Group))
	check(sender.CommitTxn())
	check(sender.BeginTxn())
	_, _, err := sender.SendMessage(message(record{Value: []byte("dropped")}, asked.Topic))
	check(err)
	check(sender.AbortTxn())
	check(sender.Close())
	return answer{"committed": true}
}
