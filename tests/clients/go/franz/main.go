// A program for franz-go: reads one question in JSON on standard input and prints the answer in JSON.
// Run by tests.support.toolchains.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
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
	Protocol      string   `json:"protocol"`
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
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	modes := map[string]func(context.Context, question) answer{
		"produce": produce, "consume": consume, "group": group, "admin": admin, "transactions": transactions,
		"ping": ping,
	}
	check(json.NewEncoder(os.Stdout).Encode(modes[asked.Mode](ctx, asked)))
}

func client(asked question, more ...kgo.Opt) *kgo.Client {
	options := append(asked.Security.options(), kgo.SeedBrokers(strings.Split(asked.Bootstrap, ",")...))
	if asked.Version != "" {
		versions := kversion.FromString(asked.Version)
		if versions == nil {
			check(fmt.Errorf("unknown version %q", asked.Version))
		}
		options = append(options, kgo.MaxVersions(versions))
	}
	found, err := kgo.NewClient(append(options, more...)...)
	check(err)
	return found
}

func codec(name string) kgo.CompressionCodec {
	return map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[name]
}

func (one record) toSend(topic string) *kgo.Record {
	sent := &kgo.Record{Topic: topic, Partition: one.Partition, Key: one.Key, Value: one.Value}
	for _, each := range one.Headers {
		sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: each.Key, Value: each.Value})
	}
	return sent
}

func received(one *kgo.Record) record {
	found := record{one.Partition, one.Offset, one.Timestamp.UnixMilli(), one.Key, one.Value, []header{}}
	for _, each := range one.Headers {
		found.Headers = append(found.Headers, header{each.Key, each.Value})
	}
	return found
}

func produce(ctx context.Context, asked question) answer {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec(asked.Codec)),
		kgo.ProducerLinger(20 * time.Millisecond),
	}
	if asked.Version != "" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	producer := client(asked, options...)
	defer producer.Close()
	var records []*kgo.Record
	for _, one := range asked.Records {
		records = append(records, one.toSend(asked.Topic))
	}
	check(producer.ProduceSync(ctx, records...).FirstErr())
	return answer{}
}

func isolation(asked question) kgo.Opt {
	if asked.ReadCommitted {
		return kgo.FetchIsolationLevel(kgo.ReadCommitted())
	}
	return kgo.FetchIsolationLevel(kgo.ReadUncommitted())
}

func poll(ctx context.Context, consumer *kgo.Client) []record {
	fetches := consumer.PollFetches(ctx)
	check(fetches.Err())
	found := []record{}
	fetches.EachRecord(func(one *kgo.Record) { found = append(found, received(one)) })
	return found
}

func consume(ctx context.Context, asked question) answer {
	begin := map[int32]kgo.Offset{}
	for partition := range asked.Partitions {
		begin[partition] = kgo.NewOffset().AtStart()
	}
	places := map[string]map[int32]kgo.Offset{asked.Topic: begin}
	consumer := client(asked, kgo.ConsumePartitions(places), isolation(asked))
	defer consumer.Close()
	found := []record{}
	for len(found) < asked.Count {
		found = append(found, poll(ctx, consumer)...)
	}
	return answer{"records": found}
}

// A member of a group and the partitions it owns.
type member struct {
	lock   sync.Mutex
	owned  map[int32]bool
	client *kgo.Client
}

func (m *member) change(partitions []int32, owns bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, partition := range partitions {
		if owns {
			m.owned[partition] = true
		} else {
			delete(m.owned, partition)
		}
	}
}

func (m *member) partitions() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := []int32{}
	for partition := range m.owned {
		found = append(found, partition)
	}
	return found
}

func join(asked question) *member {
	joined := &member{owned: map[int32]bool{}}
	take := func(_ context.Context, _ *kgo.Client, owned map[string][]int32) {
		joined.change(owned[asked.Topic], true)
	}
	lose := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
		joined.change(lost[asked.Topic], false)
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Topic), kgo.DisableAutoCommit(), isolation(asked),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(take), kgo.OnPartitionsRevoked(lose), kgo.OnPartitionsLost(lose),
	}
	if asked.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	joined.client = client(asked, options...)
	return joined
}

// Counts records; one that a member did not commit before a rebalance comes twice.
func distinct(records []record) int {
	type place struct {
		partition int32
		offset    int64
	}
	places := map[place]bool{}
	for _, one := range records {
		places[place{one.Partition, one.Offset}] = true
	}
	return len(places)
}

// Two members read the topic until each owns something and together they read all; then they leave.
func group(ctx context.Context, asked question) answer {
	members := []*member{join(asked), join(asked)}
	found := []record{}
	shared := func() bool { return len(members[0].partitions()) > 0 && len(members[1].partitions()) > 0 }
	for distinct(found) < asked.Count || !shared() {
		check(ctx.Err())
		for _, one := range members {
			brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			fetches := one.client.PollFetches(brief)
			cancel()
			fetches.EachRecord(func(each *kgo.Record) { found = append(found, received(each)) })
			check(one.client.CommitUncommittedOffsets(ctx))
		}
	}
	owned := [][]int32{members[0].partitions(), members[1].partitions()}
	for _, one := range members {
		one.client.Close()
	}
	return answer{"records": found, "owned": owned}
}

func admin(ctx context.Context, asked question) answer {
	connection := client(asked)
	defer connection.Close()
	admin := kadm.NewClient(connection)
	_, err := admin.CreateTopic(ctx, 3, 1, map[string]*string{"retention.ms": kadm.StringPtr("7000")}, asked.Topic)
	check(err)
	_, again := admin.CreateTopic(ctx, 3, 1, nil, asked.Topic)
	found := answer{"again": fmt.Sprint(again)}
	configs, err := admin.DescribeTopicConfigs(ctx, asked.Topic)
	check(err)
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			found["retention"] = config.MaybeValue()
		}
	}
	grown, err := admin.UpdatePartitions(ctx, 4, asked.Topic)
	check(err)
	check(grown.Error())
	topics, err := admin.ListTopics(ctx)
	check(err)
	found["partitions"] = len(topics[asked.Topic].Partitions)
	_, err = admin.DeleteTopic(ctx, asked.Topic)
	check(err)
	return found
}

// Passes the source on in one transaction together with its offsets, then aborts a second one.
func transactions(ctx context.Context, asked question) answer {
	session, err := kgo.NewGroupTransactSession(append(asked.Security.options(),
		kgo.SeedBrokers(strings.Split(asked.Bootstrap, ",")...), kgo.TransactionalID(asked.Group), kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeTopics(asked.Source), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), isolation(asked),
		kgo.RequireStableFetchOffsets(), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	check(err)
	defer session.Close()
	check(session.Begin())
	for passed := 0; passed < asked.Count; {
		for _, one := range poll(ctx, session.Client()) {
			check(session.ProduceSync(ctx, one.toSend(asked.Topic)).FirstErr())
			passed++
		}
	}
	kept, err := session.End(ctx, kgo.TryCommit)
	check(err)
	check(session.Begin())
	check(session.ProduceSync(ctx, record{Value: []byte("dropped")}.toSend(asked.Topic)).FirstErr())
	_, err = session.End(ctx, kgo.TryAbort)
	check(err)
	return answer{"committed": kept}
}
