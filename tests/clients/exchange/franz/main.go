// Passes values on through franz-go. Its argument is a JSON object, values are base64 lines.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type options struct {
	Bootstrap, Topic, Mode, Codec string
	Count                         int
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func main() {
	var asked options
	if err := json.Unmarshal([]byte(os.Args[1]), &asked); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if asked.Mode == "produce" {
		produce(ctx, asked)
	} else {
		consume(ctx, asked)
	}
}

func produce(ctx context.Context, asked options) {
	client, err := kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[asked.Codec]), kgo.ProducerLinger(20*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		value, err := base64.StdEncoding.DecodeString(lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		client.Produce(ctx, &kgo.Record{Topic: asked.Topic, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		log.Fatal(err)
	}
}

func consume(ctx context.Context, asked options) {
	client, err := kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap), kgo.ConsumePartitions(
		map[string]map[int32]kgo.Offset{asked.Topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for left := asked.Count; left > 0; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if left > 0 {
				fmt.Println(base64.StdEncoding.EncodeToString(record.Value))
			}
			left--
		})
	}
}
