package batch

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
)

type vectors struct {
	Keys []struct {
		Key, Hash    string
		PartitionOf6 int `json:"partition_of_6"`
	}
	Batches []struct {
		Name    string
		Batch   string
		Records []struct {
			Offset      int64
			TimestampMs int64 `json:"timestamp_ms"`
			Key, Value  *string
			Tags        []string
			Headers     [][2]*string
		}
	}
}

func load(t *testing.T) vectors {
	path := os.Getenv("FORMAT_VECTORS")
	if path == "" {
		path = "../../../docs/reference/format_vectors.json"
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found vectors
	if err := json.Unmarshal(data, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

func unhex(text *string) []byte {
	if text == nil {
		return nil
	}
	data, err := hex.DecodeString(*text)
	if err != nil {
		panic(err)
	}
	return data
}

func TestKeys(t *testing.T) {
	for _, each := range load(t).Keys {
		key := unhex(&each.Key)
		if found := fmt.Sprint(KeyHash(key)); found != each.Hash {
			t.Errorf("hash of %q: %s, want %s", key, found, each.Hash)
		}
		if found := Partition(key, 6); found != each.PartitionOf6 {
			t.Errorf("partition of %q: %d, want %d", key, found, each.PartitionOf6)
		}
	}
}

func TestVectors(t *testing.T) {
	for _, vector := range load(t).Batches {
		data := unhex(&vector.Batch)
		records, err := Decode(data)
		if err != nil || len(records) != len(vector.Records) {
			t.Fatalf("%s: %d records, %v", vector.Name, len(records), err)
		}
		for i, want := range vector.Records {
			found := records[i]
			same := found.Offset == want.Offset && found.TimestampMs == want.TimestampMs &&
				(found.Key == nil) == (want.Key == nil) && bytes.Equal(found.Key, unhex(want.Key)) &&
				(found.Value == nil) == (want.Value == nil) && bytes.Equal(found.Value, unhex(want.Value)) &&
				fmt.Sprint(found.Tags) == fmt.Sprint(want.Tags) && len(found.Headers) == len(want.Headers)
			for j := range min(len(found.Headers), len(want.Headers)) {
				same = same && found.Headers[j].Name == *want.Headers[j][0] &&
					(found.Headers[j].Value == nil) == (want.Headers[j][1] == nil) &&
					bytes.Equal(found.Headers[j].Value, unhex(want.Headers[j][1]))
			}
			if !same {
				t.Errorf("%s: record %d is %+v", vector.Name, i, found)
			}
		}
		again, err := Encode(records, Identity{})
		plain := vector.Name == "one_value" || vector.Name == "key" || vector.Name == "tombstone"
		if plain && (err != nil || !bytes.Equal(again, data)) {
			t.Errorf("%s: encoded otherwise: %v", vector.Name, err)
		}
	}
}

func TestEveryAlteredByteIsSeen(t *testing.T) {
	for _, vector := range load(t).Batches {
		data := unhex(&vector.Batch)
		for i := range data {
			altered := bytes.Clone(data)
			altered[i] ^= 0x40
			if _, err := Decode(altered); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: byte %d: %v", vector.Name, i, err)
			}
			if _, err := Decode(data[:i]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: cut at %d: %v", vector.Name, i, err)
			}
		}
	}
}

// FuzzColumns: whoever forges a checksum, too, gets an error or records, never a crash.
func FuzzColumns(f *testing.F) {
	f.Add(uint32(1), uint32(0), []byte("12345678"), []byte("payload."))
	f.Fuzz(func(t *testing.T, count, flags uint32, index, payload []byte) {
		header := make([]byte, HeaderBytes)
		little.PutUint32(header[atCount:], count)
		little.PutUint32(header[atFlags:], flags)
		_, _ = columns(header, reader{data: index}, reader{data: payload})
	})
}
