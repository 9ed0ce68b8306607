package client

import (
	"context"
	"fmt"

	"icecore.example/batch"
	"icecore.example/pb"
)

const waitMs = 500

// Reader reads one partition in order, from its leader or from any replica of an older segment.
type Reader struct {
	client    *Client
	topic     string
	partition uint32
	offset    int64  // of the next record
	node      uint32 // who is asked next; 0: not known
	tries     int
}

// Reader of a partition, from an offset on.
func (c *Client) Reader(topic string, partition int, offset int64) *Reader {
	return &Reader{client: c, topic: topic, partition: uint32(partition), offset: offset}
}

// End of the partition at the moment: the offset behind the last record that may be read.
func (r *Reader) End(ctx context.Context) (int64, error) {
	var end int64
	err := retry(ctx, func() error {
		found, err := r.client.Topic(ctx, r.topic)
		if err != nil {
			return err
		}
		node, err := r.client.node(found.Partitions[r.partition].Leader)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		answer, err := node.ListOffsets(limited, &pb.ListOffsetsRequest{
			Partitions: []*pb.ListOffsetsPartition{{
				Topic: r.topic, Partition: r.partition,
				Target: &pb.ListOffsetsPartition_Latest{Latest: true},
			}},
		})
		if err != nil {
			return failure(err)
		}
		if why := refusal(answer.Partitions[0].Error); why != nil {
			return why
		}
		end = answer.Partitions[0].Offset
		return nil
	})
	return end, err
}

// Next returns the records that follow, none when there are none yet.
func (r *Reader) Next(ctx context.Context) ([]batch.Record, error) {
	var found []batch.Record
	err := retry(ctx, func() error {
		var err error
		found, err = r.fetch(ctx)
		if err != nil {
			r.node = 0
		}
		return err
	})
	return found, err
}

func (r *Reader) fetch(ctx context.Context) ([]batch.Record, error) {
	if r.node == 0 {
		if err := r.find(ctx); err != nil {
			return nil, err
		}
	}
	node, err := r.client.node(r.node)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := node.Fetch(limited, &pb.FetchRequest{Header: &pb.FetchHeader{
		MaxWaitMs:  waitMs,
		Partitions: []*pb.FetchPartition{{Topic: r.topic, Partition: r.partition, Offset: r.offset}},
	}})
	if err != nil {
		return nil, failure(err)
	}
	part := answer.Header.GetPartitions()
	if len(part) != 1 {
		return nil, fmt.Errorf("%d results for one partition", len(part))
	}
	if why := refusal(part[0].Error); why != nil {
		return nil, why
	}
	found, err := r.records(answer.Batches)
	if err != nil {
		return nil, err
	}
	if part[0].SegmentSealed && part[0].NextOffset == part[0].SealedEndOffset {
		r.node = 0 // the next segment may be led by another node
	}
	r.offset = part[0].NextOffset
	return found, nil
}

// records of the batches, without those in front of the offset asked for.
func (r *Reader) records(data []byte) ([]batch.Record, error) {
	var found []batch.Record
	for len(data) > 0 {
		length, err := batch.Length(data)
		if err != nil {
			return nil, err
		}
		records, err := batch.Decode(data[:length])
		if err != nil {
			return nil, err
		}
		for _, each := range records {
			if each.Offset >= r.offset {
				found = append(found, each)
			}
		}
		data = data[length:]
	}
	return found, nil
}

// find asks who has the segment of the offset.
func (r *Reader) find(ctx context.Context) error {
	if _, err := r.client.Topic(ctx, r.topic); err != nil { // addresses
		return err
	}
	return r.client.admin(ctx, func(ctx context.Context, admin pb.AdminServiceClient) error {
		answer, err := admin.ListSegments(ctx, &pb.ListSegmentsRequest{
			Topic: r.topic, Partitions: []uint32{r.partition}, FromOffset: r.offset, MaxSegments: 1,
		})
		if err != nil {
			return failure(err)
		}
		if len(answer.Segments) == 0 {
			return &Error{"NOT_REPLICA", "no segment of that offset yet", nil}
		}
		segment := answer.Segments[0]
		holders := segment.Replicas
		if segment.State != pb.SegmentState_SEGMENT_STATE_SEALED {
			holders = []uint32{segment.Leader}
		} else if len(holders) == 0 {
			holders = segment.Readers // it is in object storage only
		}
		if len(holders) == 0 || holders[0] == 0 {
			return &Error{"NOT_LEADER", "nobody serves the segment at the moment", nil}
		}
		r.tries++ // another one each time, since one may be down
		r.node = holders[r.tries%len(holders)]
		return nil
	})
}

// Offset of the next record.
func (r *Reader) Offset() int64 { return r.offset }
