// Members of a share group with franz-go: reads one question in JSON on standard input and prints the answer in JSON.
// Every tenth record is released when it comes first, and accepted when it comes again. Run by tests.support.toolchains.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const timeout = 60 * time.Second

type question struct {
	Bootstrap string   `json:"bootstrap"`
	Topic     string   `json:"topic"`
	Group     string   `json:"group"`
	Values    []string `json:"values"`
	Strict    bool     `json:"strict"`
	Members   int      `json:"members"`
}

type accepted struct {
	Value      string `json:"value"`
	Member     int    `json:"member"`
	Deliveries int32  `json:"deliveries"`
}

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
	produce(ctx, asked)
	var lock sync.Mutex
	var all []accepted
	var ackErrors atomic.Int64
	var members sync.WaitGroup
	done, finish := context.WithCancel(ctx)
	for member := 0; member < asked.Members; member++ {
		members.Add(1)
		go func() {
			defer members.Done()
			consume(done, asked, &ackErrors, func(record accepted) {
				record.Member = member
				lock.Lock()
				defer lock.Unlock()
				all = append(all, record)
				if len(all) == len(asked.Values) {
					finish()
				}
			})
		}()
	}
	members.Wait()
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"accepted": all, "ack_errors": ackErrors.Load()}))
}

func produce(ctx context.Context, asked question) {
	client, err := kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap), kgo.DefaultProduceTopic(asked.Topic))
	check(err)
	defer client.Close()
	for _, value := range asked.Values {
		check(client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
	}
	earliest := "earliest"
	request := kmsg.NewIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, asked.Group
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Op, config.Value = "share.auto.offset.reset", kmsg.IncrementalAlterConfigOpSet, &earliest
	resource.Configs = append(resource.Configs, config)
	request.Resources = append(request.Resources, resource)
	response, err := request.RequestWith(ctx, client)
	check(err)
	check(kerr.ErrorForCode(response.Resources[0].ErrorCode))
}

func consume(ctx context.Context, asked question, ackErrors *atomic.Int64, accept func(accepted)) {
	options := []kgo.Opt{
		kgo.SeedBrokers(asked.Bootstrap),
		kgo.ConsumeTopics(asked.Topic),
		kgo.ShareGroup(asked.Group),
		kgo.ShareMaxRecords(20),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			for _, result := range results {
				if result.Err != nil {
					ackErrors.Add(1)
				}
			}
		}),
	}
	if asked.Strict {
		options = append(options, kgo.ShareMaxRecordsStrict())
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			value := string(record.Value)
			if record.DeliveryCount() == 1 && strings.HasSuffix(value, "7") {
				record.Ack(kgo.AckRelease)
				return
			}
			record.Ack(kgo.AckAccept)
			accept(accepted{Value: value, Deliveries: record.DeliveryCount()})
		})
		flush, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		check(client.FlushAcks(flush))
		cancel()
	}
}
