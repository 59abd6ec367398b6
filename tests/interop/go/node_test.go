package interop

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/multiformats/go-multiaddr"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/relay"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"
)

// Far beyond the maximum age of archived messages.
const longAgo = time.Hour

// startNode starts a go-waku node of our cluster and shard on loopback, as go-waku's own `waku` program does.
func startNode(t *testing.T, options ...node.WakuNodeOption) *node.WakuNode {
	t.Helper()
	return startNodeOf(t, clusterID, options...)
}

func startNodeOf(t *testing.T, cluster uint16, options ...node.WakuNodeOption) *node.WakuNode {
	t.Helper()
	base := []node.WakuNodeOption{
		node.WithHostAddress(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}),
		node.WithClusterID(cluster),
		node.WithShards([]uint16{shard}),
		node.WithLogLevel(logLevel(t)),
	}
	n, err := node.New(append(base, options...)...)
	must(t, err)
	must(t, n.Start(context.Background()))
	t.Cleanup(n.Stop)
	return n
}

// logLevel is quiet by default: go-waku logs harmless errors, such as that loopback has no external address.
func logLevel(t *testing.T) zapcore.Level {
	t.Helper()
	name := os.Getenv(logVariable)
	if name == "" {
		return zapcore.PanicLevel
	}
	level, err := zapcore.ParseLevel(name)
	must(t, err)
	return level
}

// dial connects a node with a server. go-waku then requests the server's metadata, and disconnects if they don't match.
func dial(t *testing.T, n *node.WakuNode, address multiaddr.Multiaddr) {
	t.Helper()
	must(t, n.DialPeerWithMultiAddress(bounded(t), address))
}

// follow subscribes a node by relay to everything on our shard.
func follow(t *testing.T, n *node.WakuNode) <-chan *protocol.Envelope {
	t.Helper()
	subscriptions, err := n.Relay().Subscribe(context.Background(), protocol.NewContentFilter(pubsubTopic))
	must(t, err)
	return subscriptions[0].Ch
}

// joined waits until both sides have announced their subscriptions to the topic.
func joined(t *testing.T, n *node.WakuNode, s *server) {
	t.Helper()
	until(t, "the server as relay peer", func() bool {
		for _, id := range n.Relay().PubSub().ListPeers(pubsubTopic) {
			if id == s.id {
				return true
			}
		}
		return false
	})
}

// meshed waits until one node receives what another publishes. A node between them forwards to its mesh only, which
// accepts a new peer at the next heartbeat; earlier messages never reach that peer.
func meshed(t *testing.T, publisher *node.WakuNode, arriving <-chan *protocol.Envelope) {
	t.Helper()
	round := 0
	until(t, "a message carried from one node to another", func() bool {
		round++
		relayed(t, publisher, messages(fmt.Sprintf("/interop/1/meshed-%d/proto", round), 1))
		select {
		case <-arriving:
			return true
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
}

// receive reads envelopes until all messages have arrived, each once, and fails on others under their content topic.
func receive(t *testing.T, arriving <-chan *protocol.Envelope, messages []*pb.WakuMessage) {
	t.Helper()
	missing := map[pb.MessageHash]bool{}
	for _, message := range messages {
		missing[message.Hash(pubsubTopic)] = true
	}
	contentTopic := messages[0].ContentTopic
	for len(missing) > 0 {
		envelope := within(t, fmt.Sprintf("%d messages of %d", len(missing), len(messages)), arriving)
		if envelope.Message().ContentTopic != contentTopic {
			continue
		}
		if !missing[envelope.Hash()] {
			t.Fatalf("duplicate or never published: %v", envelope.Message())
		}
		if envelope.PubsubTopic() != pubsubTopic {
			t.Fatalf("received on %s", envelope.PubsubTopic())
		}
		delete(missing, envelope.Hash())
	}
}

// kept waits until the archive holds exactly these messages.
func kept(t *testing.T, s *server, messages []*pb.WakuMessage) {
	t.Helper()
	var hashes map[string]bool
	until(t, "the messages in the archive", func() bool {
		hashes = s.archived(t, messages[0].ContentTopic)
		return len(hashes) >= len(messages)
	})
	if len(hashes) != len(messages) {
		t.Fatalf("the archive holds %d messages of %d", len(hashes), len(messages))
	}
	for _, message := range messages {
		if hash := message.Hash(pubsubTopic).String(); !hashes[hash] {
			t.Fatalf("not in the archive: %s", hash)
		}
	}
}

// By default go-waku drops messages while 32 others wait for validation, which a burst on a busy machine causes. That is not
// the sender's fault, so the queue is longer here.
func relayOption() node.WakuNodeOption {
	return node.WithWakuRelayAndMinPeers(1, pubsub.WithValidateQueueSize(1024))
}

// relayed publishes messages by a node's relay.
func relayed(t *testing.T, n *node.WakuNode, messages []*pb.WakuMessage) {
	t.Helper()
	for _, message := range messages {
		_, err := n.Relay().Publish(bounded(t), message, relay.WithPubSubTopic(pubsubTopic))
		must(t, err)
	}
}

// messages creates current messages, two of each timestamp, so that the hash decides their order.
func messages(contentTopic string, count int) []*pb.WakuMessage {
	start := time.Now().UnixNano()
	made := make([]*pb.WakuMessage, count)
	for i := range made {
		made[i] = &pb.WakuMessage{
			Payload:      fmt.Appendf(nil, "%s %d", contentTopic, i),
			ContentTopic: contentTopic,
			Timestamp:    proto.Int64(start + int64(i/2)*1000),
		}
	}
	return made
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
