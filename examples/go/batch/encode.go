package batch

import (
	"errors"
	"hash/crc32"
)

// Identity numbers the batches of a producer, so that one that is sent again is recognised.
type Identity struct {
	ProducerID   uint64 // 0: not recognised
	Epoch        uint32
	BaseSequence uint64 // of the first record, by partition
}

// Encode writes keys, values and times of records. Tags and headers are not written by this client.
func Encode(records []Record, identity Identity) ([]byte, error) {
	if len(records) == 0 {
		return nil, errors.New("a batch has at least one record")
	}
	count, flags := len(records), uint32(noKeys|noTags|noHeaders|noHashes)
	for _, each := range records {
		if len(each.Tags)+len(each.Headers) > 0 {
			return nil, errors.New("this client writes neither tags nor headers")
		}
		if each.Key != nil {
			flags &^= noKeys
		}
	}
	var index, payload writer
	least, greatest := records[0].TimestampMs, records[0].TimestampMs
	for _, each := range records {
		least, greatest = min(least, each.TimestampMs), max(greatest, each.TimestampMs)
		index.data = little.AppendUint64(index.data, uint64(each.TimestampMs))
	}
	keyOf := func(i int) []byte { return records[i].Key }
	if flags&noKeys == 0 {
		index.bits(count, keyOf)
		for _, each := range records {
			hash := uint64(0)
			if each.Key != nil {
				hash = KeyHash(each.Key)
			}
			index.data = little.AppendUint64(index.data, hash)
		}
		payload.bits(count, keyOf)
		payload.binary(count, keyOf)
	}
	valueOf := func(i int) []byte { return records[i].Value }
	payload.bits(count, valueOf)
	payload.binary(count, valueOf)

	header := make([]byte, HeaderBytes, HeaderBytes+len(index.data)+len(payload.data))
	copy(header, magic)
	little.PutUint16(header[4:], version)
	little.PutUint16(header[6:], HeaderBytes)
	little.PutUint32(header[atLength:], uint32(cap(header)))
	little.PutUint32(header[atFlags:], flags)
	header[atCodec] = codecNone
	little.PutUint32(header[atCount:], uint32(count))
	little.PutUint32(header[atIndex:], uint32(len(index.data)))
	little.PutUint32(header[atInflated:], uint32(len(payload.data)))
	little.PutUint64(header[atLeastMs:], uint64(least))
	little.PutUint64(header[atGreatestMs:], uint64(greatest))
	little.PutUint64(header[atProducer:], identity.ProducerID)
	little.PutUint64(header[atSequence:], identity.BaseSequence)
	little.PutUint32(header[atEpoch:], identity.Epoch)
	little.PutUint32(header[atPayload:], uint32(len(payload.data)))
	data := append(append(header, index.data...), payload.data...)
	little.PutUint32(data[atCRC:], crc32.Checksum(data[checkedFrom:], castagnoli))
	little.PutUint32(data[atHeaderCRC:], headerCRC(data))
	return data, nil
}

// writer appends columns, each padded to 8 bytes.
type writer struct{ data []byte }

func (w *writer) pad() { w.data = append(w.data, zeros[:padded(len(w.data))-len(w.data)]...) }

func (w *writer) bits(count int, valueOf func(int) []byte) {
	found := make([]byte, (count+7)/8)
	for i := range count {
		if valueOf(i) != nil {
			found[i/8] |= 1 << (i % 8)
		}
	}
	w.data = append(w.data, found...)
	w.pad()
}

func (w *writer) binary(count int, valueOf func(int) []byte) {
	end := 0
	w.data = little.AppendUint32(w.data, 0)
	for i := range count {
		end += len(valueOf(i))
		w.data = little.AppendUint32(w.data, uint32(end))
	}
	w.pad()
	for i := range count {
		w.data = append(w.data, valueOf(i)...)
	}
	w.pad()
}
