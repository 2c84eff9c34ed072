// Command franz is an honest producer on franz-go.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"

	"kquota/tests/go/honest/paced"
)

func main() {
	work := paced.Read()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(work.Bootstrap...),
		kgo.ClientID(work.ClientID),
		kgo.MaxBufferedBytes(work.BufferBytes),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var result paced.Result
	ctx := context.Background()
	work.Offer(&result, func(number int, value []byte) {
		record := &kgo.Record{Topic: work.Topic, Value: value}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				result.Failed(err)
			} else {
				result.Acknowledged(number)
			}
		})
	})
	if err := client.Flush(ctx); err != nil {
		result.Failed(err)
	}
	client.Close()
	result.Write()
}
