// A small client of icecore in Go: lines of standard input into a topic, and a topic out as lines.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"
	"unicode/utf8"

	"icecore.example/batch"
	"icecore.example/client"
)

const usage = `icecore-go -bootstrap HOST:PORT[,HOST:PORT] produce|fetch TOPIC

produce  appends each line of standard input, which is also its key; prints
         {"partition":…,"offset":…,"value":…} once a line is acknowledged
fetch    prints the records that are there now, in the same form; a value that is no UTF-8 is
         base64, with "value_encoding":"base64" beside it, and a tombstone is null
`

// lineBytesMax is more than a topic takes unless it was told to; a longer line is an error.
const lineBytesMax = 2 << 20

// Line is what is printed of a record.
type Line struct {
	Partition int     `json:"partition"`
	Offset    int64   `json:"offset"`
	Value     *string `json:"value"`
	Encoding  string  `json:"value_encoding,omitempty"`
}

// lineOf says how a value is printed: JSON has texts only.
func lineOf(partition int, offset int64, value []byte) Line {
	line := Line{Partition: partition, Offset: offset}
	if value == nil {
		return line
	}
	text := string(value)
	if !utf8.Valid(value) {
		text, line.Encoding = base64.StdEncoding.EncodeToString(value), "base64"
	}
	line.Value = &text
	return line
}

func main() {
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	bootstrap := flag.String("bootstrap", "127.0.0.1:7400", "addresses of coordinators")
	limit := flag.Duration("timeout", time.Minute, "for all of it")
	size := flag.Int("batch", 20, "lines of a batch at most")
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	cluster := client.New(*bootstrap)
	defer cluster.Close()
	out := &printer{encoder: json.NewEncoder(os.Stdout)}
	var err error
	switch command, topic := flag.Arg(0), flag.Arg(1); command {
	case "produce":
		err = produce(ctx, cluster, topic, *size, out)
	case "fetch":
		err = fetch(ctx, cluster, topic, out)
	default:
		err = fmt.Errorf("unknown command %q: produce or fetch", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "icecore-go:", err)
		os.Exit(1)
	}
}

// printer is shared by goroutines.
type printer struct {
	mutex   sync.Mutex
	encoder *json.Encoder
}

func (p *printer) print(lines []Line) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, each := range lines {
		if err := p.encoder.Encode(each); err != nil {
			return err
		}
	}
	return nil
}

// each runs one goroutine for each partition and returns the first error.
func each(partitions int, run func(partition int) error) error {
	errs := make(chan error, partitions)
	for partition := range partitions {
		go func() { errs <- run(partition) }()
	}
	var first error
	for range partitions {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func produce(ctx context.Context, cluster *client.Client, topic string, size int, out *printer) error {
	producer, err := client.NewProducer(ctx, cluster, topic)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queues := make([]chan []byte, producer.Partitions)
	for i := range queues {
		queues[i] = make(chan []byte, size)
	}
	read := make(chan error, 1)
	go func() { read <- spread(ctx, queues) }()
	err = each(len(queues), func(partition int) error {
		err := appendAll(ctx, producer.Writer(partition), partition, queues[partition], size, out)
		if err != nil {
			cancel() // the reader of lines must not wait for a queue that nobody empties
		}
		return err
	})
	if readErr := <-read; err == nil {
		err = readErr
	}
	return err
}

// spread puts each line into the queue of its partition.
func spread(ctx context.Context, queues []chan []byte) error {
	defer func() {
		for _, each := range queues {
			close(each)
		}
	}()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		line := append([]byte{}, lines.Bytes()...)
		select {
		case queues[batch.Partition(line, len(queues))] <- line:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return lines.Err()
}

func appendAll(
	ctx context.Context, writer *client.PartitionWriter, partition int,
	queue <-chan []byte, size int, out *printer,
) error {
	for line := range queue {
		now := time.Now().UnixMilli()
		records := []batch.Record{{Key: line, Value: line, TimestampMs: now}}
		for len(records) < size && len(queue) > 0 {
			line := <-queue
			records = append(records, batch.Record{Key: line, Value: line, TimestampMs: now})
		}
		offset, err := writer.Append(ctx, records)
		if err != nil {
			return fmt.Errorf("partition %d: %w", partition, err)
		}
		lines := make([]Line, len(records))
		for i, each := range records {
			lines[i] = lineOf(partition, offset+int64(i), each.Value)
		}
		if err := out.print(lines); err != nil {
			return err
		}
	}
	return nil
}

func fetch(ctx context.Context, cluster *client.Client, topic string, out *printer) error {
	found, err := cluster.Topic(ctx, topic)
	if err != nil {
		return err
	}
	return each(len(found.Partitions), func(partition int) error {
		offset := found.Partitions[partition].LogStartOffset
		reader := cluster.Reader(topic, partition, offset)
		end, err := reader.End(ctx)
		for err == nil && reader.Offset() < end {
			var records []batch.Record
			if records, err = reader.Next(ctx); err != nil {
				break
			}
			lines := make([]Line, 0, len(records))
			for _, each := range records {
				if each.Offset < end {
					lines = append(lines, lineOf(partition, each.Offset, each.Value))
				}
			}
			err = out.print(lines)
		}
		return err
	})
}
