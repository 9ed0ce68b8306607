// Package batch is the format of record batches, as docs/reference/formats.md has it: bytes to records and back.
package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cespare/xxhash/v2"
)

// HeaderBytes is the length of a header.
const HeaderBytes = 152

const (
	magic        = "iceb"
	version      = 1
	lengthMax    = 1 << 30
	inflatedMax  = 64 << 20
	keySeed      = 42
	checkedFrom  = 84
	noKeys       = 1
	noTags       = 2
	noHeaders    = 4
	noHashes     = 8
	compacted    = 1
	codecNone    = 0
	codecLZ4     = 1
	codecZstd    = 2
	atLength     = 8
	atHeaderCRC  = 12
	atBaseOffset = 32
	atAppendedMs = 48
	atLeaderBits = 76
	atCRC        = 80
	atFlags      = 84
	atCodec      = 88
	atCount      = 92
	atIndex      = 96
	atInflated   = 100
	atLeastMs    = 104
	atGreatestMs = 112
	atProducer   = 120
	atSequence   = 128
	atEpoch      = 136
	atPayload    = 144
)

var (
	little     = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      [8]byte
)

// ErrCorrupt is in the chain of every error about bytes that are no batch.
var ErrCorrupt = errors.New("corrupt batch")

func corrupt(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, values...))
}

// Header is one named value of a record; Value is nil when there is none.
type Header struct {
	Name  string
	Value []byte
}

// Record is one event. Key is nil without a key, Value of a tombstone.
type Record struct {
	Offset      int64 // set on reads
	TimestampMs int64
	Key         []byte
	Value       []byte
	Tags        []string
	Headers     []Header
}

// KeyHash of a key: leaders refuse a wrong one.
func KeyHash(key []byte) uint64 {
	digest := xxhash.NewWithSeed(keySeed)
	_, _ = digest.Write(key) // never fails
	return digest.Sum64()
}

// Partition of a key, for topics with the partitioner xxh64.
func Partition(key []byte, partitions int) int {
	return int((KeyHash(key) >> 32) % uint64(partitions))
}

// Length of the batch whose first bytes are given.
func Length(data []byte) (int, error) {
	if len(data) < HeaderBytes || string(data[:4]) != magic {
		return 0, corrupt("no header at its beginning")
	}
	length := little.Uint32(data[atLength:])
	if length < HeaderBytes || length > lengthMax || uint64(length) > uint64(len(data)) {
		return 0, corrupt("length %d, of %d bytes", length, len(data))
	}
	return int(length), nil
}

func headerCRC(header []byte) uint32 {
	crc := crc32.Update(0, castagnoli, header[:atHeaderCRC])
	crc = crc32.Update(crc, castagnoli, zeros[:4])
	return crc32.Update(crc, castagnoli, header[atHeaderCRC+4:HeaderBytes])
}

func padded(length int) int { return (length + 7) &^ 7 }
