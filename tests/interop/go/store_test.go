package interop

import (
	"bytes"
	"cmp"
	"slices"
	"testing"

	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/store"
	"google.golang.org/protobuf/proto"
)

const (
	talk = "/interop/1/talk/proto"
	side = "/interop/1/side/proto"
)

// history is a server with 250 messages of one topic and 30 of another, and a go-waku client of it.
type history struct {
	server *server
	client *node.WakuNode
	talk   []*pb.WakuMessage
	side   []*pb.WakuMessage
}

func startHistory(t *testing.T) *history {
	t.Helper()
	h := &history{server: startServer(t), client: startNode(t)}
	h.talk, h.side = messages(talk, 250), messages(side, 30)
	h.server.publish(t, append(slices.Clone(h.talk), h.side...)...)
	inArchiveOrder(h.talk)
	inArchiveOrder(h.side)
	dial(t, h.client, h.server.tcp)
	return h
}

// inArchiveOrder sorts as in 13/WAKU2-STORE: by timestamp, then by hash.
func inArchiveOrder(messages []*pb.WakuMessage) {
	slices.SortFunc(messages, func(one, other *pb.WakuMessage) int {
		oneHash, otherHash := one.Hash(pubsubTopic), other.Hash(pubsubTopic)
		byTime := cmp.Compare(one.GetTimestamp(), other.GetTimestamp())
		return cmp.Or(byTime, bytes.Compare(oneHash[:], otherHash[:]))
	})
}

// options are those of every query: to our server, and without the client's limit of one query a second.
func (h *history) options(more ...store.RequestOption) []store.RequestOption {
	return append([]store.RequestOption{store.WithPeer(h.server.id), store.SkipRateLimit()}, more...)
}

func (h *history) query(t *testing.T, criteria store.FilterCriteria, more ...store.RequestOption) store.Result {
	t.Helper()
	result, err := h.client.Store().Query(bounded(t), criteria, h.options(more...)...)
	must(t, err)
	return result
}

func about(contentTopics ...string) store.FilterCriteria {
	return store.FilterCriteria{ContentFilter: protocol.NewContentFilter(pubsubTopic, contentTopics...)}
}

// allPages follows go-waku's cursor to the end.
func allPages(t *testing.T, result store.Result) [][]pb.MessageHash {
	t.Helper()
	var pages [][]pb.MessageHash
	for !result.IsComplete() {
		var page []pb.MessageHash
		for _, entry := range result.Messages() {
			page = append(page, entry.WakuMessageHash())
		}
		pages = append(pages, page)
		must(t, result.Next(bounded(t), store.SkipRateLimit()))
	}
	return pages
}

func hashesOf(messages []*pb.WakuMessage) []pb.MessageHash {
	hashes := make([]pb.MessageHash, len(messages))
	for i, message := range messages {
		hashes[i] = message.Hash(pubsubTopic)
	}
	return hashes
}

func same(t *testing.T, got, want [][]pb.MessageHash) {
	t.Helper()
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Fatalf("unexpected pages:\n got %v\nwant %v", got, want)
	}
}

func TestStorePagesForwardAndBackward(t *testing.T) {
	h := startHistory(t)
	all := hashesOf(h.talk)

	forward := allPages(t, h.query(t, about(talk), store.WithPaging(true, 100)))
	same(t, forward, [][]pb.MessageHash{all[:100], all[100:200], all[200:]})

	// The newest page comes first, and in each the oldest message.
	backward := allPages(t, h.query(t, about(talk), store.WithPaging(false, 100)))
	same(t, backward, [][]pb.MessageHash{all[150:], all[50:150], all[:50]})

	byDefault := h.query(t, about(talk), store.WithPaging(true, 0))
	if count := len(byDefault.Messages()); count != store.DefaultPageSize {
		t.Fatalf("%d messages without a limit", count)
	}
}

func TestStoreAnswersWithWholeMessagesOrHashesAlone(t *testing.T) {
	h := startHistory(t)
	whole := h.query(t, about(side), store.WithPaging(true, 100))
	for i, entry := range whole.Messages() {
		if !proto.Equal(entry.Message, h.side[i]) {
			t.Fatalf("got %v, published %v", entry.Message, h.side[i])
		}
		if entry.GetPubsubTopic() != pubsubTopic {
			t.Fatalf("on %s", entry.GetPubsubTopic())
		}
	}
	alone := h.query(t, about(side), store.WithPaging(true, 100), store.IncludeData(false))
	same(t, allPages(t, alone), [][]pb.MessageHash{hashesOf(h.side)})
	for _, entry := range alone.Messages() {
		if entry.Message != nil || entry.PubsubTopic != nil {
			t.Fatalf("more than the hash: %v", entry)
		}
	}
}

func TestStoreFindsMessagesByHash(t *testing.T) {
	h := startHistory(t)
	wanted := append(slices.Clone(h.talk[10:15]), h.side[3])
	inArchiveOrder(wanted)
	unknown := pb.ToMessageHash(bytes.Repeat([]byte{7}, 32))

	hashes := append(hashesOf(wanted), unknown)
	result, err := h.client.Store().QueryByHash(bounded(t), hashes, h.options()...)
	must(t, err)
	same(t, allPages(t, result), [][]pb.MessageHash{hashesOf(wanted)})

	for hash, expected := range map[pb.MessageHash]bool{hashes[0]: true, unknown: false} {
		exists, err := h.client.Store().Exists(bounded(t), hash, h.options()...)
		must(t, err)
		if exists != expected {
			t.Fatalf("exists is %v for %s", exists, hash)
		}
	}
}

func TestStoreTimeRangeIncludesItsStartAndNotItsEnd(t *testing.T) {
	h := startHistory(t)
	criteria := about(talk)
	criteria.TimeStart, criteria.TimeEnd = h.talk[20].Timestamp, h.talk[40].Timestamp
	var inRange []*pb.WakuMessage
	for _, message := range h.talk {
		if message.GetTimestamp() >= *criteria.TimeStart && message.GetTimestamp() < *criteria.TimeEnd {
			inRange = append(inRange, message)
		}
	}
	result := h.query(t, criteria, store.WithPaging(true, 100))
	same(t, allPages(t, result), [][]pb.MessageHash{hashesOf(inRange)})
}

func TestStoreFindsNothingOnATopicWithNothing(t *testing.T) {
	h := startHistory(t)
	for _, forward := range []bool{true, false} {
		result := h.query(t, about("/interop/1/nobody/proto"), store.WithPaging(forward, 100))
		if len(result.Messages()) != 0 || result.Cursor() != nil {
			t.Fatalf("got %v", result.Response())
		}
	}
}

func TestStoreAnswersSeveralTopicsAndTheWholeShard(t *testing.T) {
	h := startHistory(t)
	both := append(slices.Clone(h.talk), h.side...)
	inArchiveOrder(both)
	for _, criteria := range []store.FilterCriteria{about(talk, side), about()} {
		pages := allPages(t, h.query(t, criteria, store.WithPaging(true, 100)))
		same(t, [][]pb.MessageHash{slices.Concat(pages...)}, [][]pb.MessageHash{hashesOf(both)})
	}
}
