package client

import (
	"context"
	"fmt"

	"icecore.example/batch"
	"icecore.example/pb"
)

// Producer appends to one topic, each record once, however often a batch has to be sent. One
// goroutine for each partition: requests of a partition that overtake each other would be refused.
type Producer struct {
	client     *Client
	topic      string
	id         uint64
	epoch      uint32
	Partitions int
}

// NewProducer asks any node for an id.
func NewProducer(ctx context.Context, client *Client, topic string) (*Producer, error) {
	made := &Producer{client: client, topic: topic}
	err := retry(ctx, func() error {
		found, err := client.Topic(ctx, topic)
		if err != nil {
			return err
		}
		made.Partitions = len(found.Partitions)
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		node, err := client.node(found.Partitions[0].Leader)
		if err != nil {
			return err
		}
		answer, err := node.InitProducer(limited, &pb.InitProducerRequest{ClusterId: client.clusterID})
		if err != nil {
			return failure(err)
		}
		made.id, made.epoch = answer.ProducerId, answer.ProducerEpoch
		return nil
	})
	return made, err
}

// PartitionWriter appends to one partition, in order.
type PartitionWriter struct {
	producer  *Producer
	partition uint32
	leader    uint32 // 0: not known
	sequence  uint64
}

// Writer of a partition; there may be one of each.
func (p *Producer) Writer(partition int) *PartitionWriter {
	return &PartitionWriter{producer: p, partition: uint32(partition)}
}

// Append returns the offset of the first record once all of them are durable on every in-sync
// replica. After an error it is unknown whether they are, and the writer is of no more use.
func (w *PartitionWriter) Append(ctx context.Context, records []batch.Record) (int64, error) {
	identity := batch.Identity{
		ProducerID: w.producer.id, Epoch: w.producer.epoch, BaseSequence: w.sequence,
	}
	data, err := batch.Encode(records, identity)
	if err != nil {
		return 0, err
	}
	var offset int64
	err = retry(ctx, func() error {
		offset, err = w.send(ctx, data)
		if err != nil {
			w.leader = 0
		}
		return err
	})
	w.sequence += uint64(len(records))
	return offset, err
}

func (w *PartitionWriter) send(ctx context.Context, data []byte) (int64, error) {
	if w.leader == 0 {
		found, err := w.producer.client.Topic(ctx, w.producer.topic)
		if err != nil {
			return 0, err
		}
		w.leader = found.Partitions[w.partition].Leader
	}
	node, err := w.producer.client.node(w.leader)
	if err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := node.Produce(limited, &pb.ProduceRequest{
		Header: &pb.ProduceHeader{
			ClusterId: w.producer.client.clusterID,
			Acks:      pb.Acks_ACKS_ALL,
			TimeoutMs: uint32(callTimeout.Milliseconds()),
			Partitions: []*pb.ProducePartition{{
				Topic: w.producer.topic, Partition: w.partition, BatchLength: uint32(len(data)),
			}},
		},
		Batches: data,
	})
	if err != nil {
		return 0, failure(err)
	}
	if len(answer.Partitions) != 1 {
		return 0, fmt.Errorf("%d results for one batch", len(answer.Partitions))
	}
	if why := refusal(answer.Partitions[0].Error); why != nil {
		return 0, why
	}
	return answer.Partitions[0].BaseOffset, nil
}
