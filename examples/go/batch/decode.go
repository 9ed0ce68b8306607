package batch

import (
	"bytes"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Decode proves one whole batch by its checksums and takes its records out.
func Decode(data []byte) ([]Record, error) {
	length, err := Length(data)
	if err != nil {
		return nil, err
	}
	if length != len(data) {
		return nil, corrupt("%d bytes behind it", len(data)-length)
	}
	if little.Uint16(data[4:]) != version || little.Uint16(data[6:]) != HeaderBytes {
		return nil, corrupt("version %d", little.Uint16(data[4:]))
	}
	if headerCRC(data) != little.Uint32(data[atHeaderCRC:]) {
		return nil, corrupt("checksum of the header")
	}
	if crc32.Checksum(data[checkedFrom:], castagnoli) != little.Uint32(data[atCRC:]) {
		return nil, corrupt("checksum of the content")
	}
	indexEnd := HeaderBytes + int(little.Uint32(data[atIndex:]))
	stored := int(little.Uint32(data[atPayload:]))
	if indexEnd+padded(stored) != length {
		return nil, corrupt("its parts have another length")
	}
	payload, err := inflate(data[atCodec], data[indexEnd:indexEnd+stored], int(little.Uint32(data[atInflated:])))
	if err != nil {
		return nil, err
	}
	return columns(data, reader{data: data[HeaderBytes:indexEnd]}, reader{data: payload})
}

func inflate(codec byte, stored []byte, length int) ([]byte, error) {
	if length > inflatedMax {
		return nil, corrupt("%d bytes, inflated", length)
	}
	var source io.Reader
	switch codec {
	case codecNone:
		source = bytes.NewReader(stored)
	case codecLZ4:
		source = lz4.NewReader(bytes.NewReader(stored))
	case codecZstd:
		frames, err := zstd.NewReader(bytes.NewReader(stored), zstd.WithDecoderMaxWindow(64<<20))
		if err != nil {
			return nil, corrupt("%v", err)
		}
		defer frames.Close()
		source = frames
	default:
		return nil, corrupt("codec %d", codec)
	}
	found := make([]byte, length)
	if _, err := io.ReadFull(source, found); err != nil {
		return nil, corrupt("payload: %v", err)
	}
	if more, _ := source.Read(make([]byte, 1)); more != 0 {
		return nil, corrupt("the payload is longer than it says")
	}
	return found, nil
}

func columns(header []byte, index, payload reader) ([]Record, error) {
	count, flags := int(little.Uint32(header[atCount:])), little.Uint32(header[atFlags:])
	if count > len(index.data)/8 {
		return nil, corrupt("%d records", count)
	}
	base := int64(little.Uint64(header[atBaseOffset:]))
	var deltas []uint32
	if little.Uint32(header[atLeaderBits:])&compacted != 0 {
		deltas = index.u32s(count)
	}
	times := index.u64s(count)
	if flags&noKeys == 0 {
		index.take((count + 7) / 8)
		index.u64s(count)
	}
	var tags [][]string
	if flags&noTags == 0 {
		tags = index.tags(count)
	}
	var keys [][]byte
	if flags&noKeys == 0 {
		keys = payload.optional(count)
	}
	values := payload.optional(count)
	var headers [][]Header
	if flags&noHeaders == 0 {
		headers = payload.headers(count)
	}
	if index.err != nil || payload.err != nil || len(payload.data) != 0 {
		return nil, corrupt("its columns do not fit")
	}
	records := make([]Record, count)
	for i := range records {
		records[i] = Record{Offset: base + int64(i), TimestampMs: int64(times[i]), Value: values[i]}
		if deltas != nil {
			records[i].Offset = base + int64(deltas[i])
		}
		if keys != nil {
			records[i].Key = keys[i]
		}
		if tags != nil {
			records[i].Tags = tags[i]
		}
		if headers != nil {
			records[i].Headers = headers[i]
		}
	}
	return records, nil
}

// reader takes columns from the front. After an error it gives nothing, and no array is made before
// its bytes are known to be there.
type reader struct {
	data []byte
	err  error
}

// take gives length bytes and drops their padding; nil after an error.
func (r *reader) take(length int) []byte {
	if length < 0 || padded(length) > len(r.data) || r.err != nil {
		r.err = ErrCorrupt
		return nil
	}
	found := r.data[:length:length]
	r.data = r.data[padded(length):]
	return found
}

func (r *reader) u32s(count int) []uint32 {
	data := r.take(4 * count)
	found := make([]uint32, len(data)/4)
	for i := range found {
		found[i] = little.Uint32(data[4*i:])
	}
	return found
}

func (r *reader) u64s(count int) []uint64 {
	data := r.take(8 * count)
	found := make([]uint64, len(data)/8)
	for i := range found {
		found[i] = little.Uint64(data[8*i:])
	}
	return found
}

// ends gives where count values begin and end, proved to rise from 0; nil after an error.
func (r *reader) ends(count int) []int {
	if count < 0 || count > len(r.data) {
		r.err = ErrCorrupt
		return nil
	}
	raw := r.u32s(count + 1)
	found := make([]int, len(raw))
	for i, each := range raw {
		found[i] = int(each)
		if i == 0 && each != 0 || i > 0 && found[i] < found[i-1] {
			r.err = ErrCorrupt
			return nil
		}
	}
	if r.err != nil {
		return nil
	}
	return found
}

// binary is count values; nil after an error.
func (r *reader) binary(count int) [][]byte {
	ends := r.ends(count)
	if ends == nil {
		return nil
	}
	data := r.take(ends[count])
	if r.err != nil {
		return nil
	}
	found := make([][]byte, count)
	for i := range found {
		found[i] = data[ends[i]:ends[i+1]:ends[i+1]]
	}
	return found
}

// optional is bits and values, nil where the bit is not set.
func (r *reader) optional(count int) [][]byte {
	bits := r.take((count + 7) / 8)
	found := r.binary(count)
	for i := range found {
		if bits[i/8]>>(i%8)&1 == 0 {
			found[i] = nil
		}
	}
	return found
}

func (r *reader) tags(count int) [][]string {
	sizes := r.take(8)
	if sizes == nil {
		return nil
	}
	names := r.binary(int(little.Uint32(sizes)))
	ends := r.ends(count)
	if ends == nil {
		return nil
	}
	ids := r.u32s(ends[count])
	if r.err != nil {
		return nil
	}
	found := make([][]string, count)
	for i := range found {
		for _, id := range ids[ends[i]:ends[i+1]] {
			if int(id) >= len(names) {
				r.err = ErrCorrupt
				return nil
			}
			found[i] = append(found[i], string(names[id]))
		}
	}
	return found
}

func (r *reader) headers(count int) [][]Header {
	ends := r.ends(count)
	if ends == nil {
		return nil
	}
	names, values := r.binary(ends[count]), r.optional(ends[count])
	if r.err != nil {
		return nil
	}
	found := make([][]Header, count)
	for i := range found {
		for j := ends[i]; j < ends[i+1]; j++ {
			found[i] = append(found[i], Header{Name: string(names[j]), Value: values[j]})
		}
	}
	return found
}
