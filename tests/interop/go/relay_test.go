package interop

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/multiformats/go-multiaddr"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"google.golang.org/protobuf/proto"
)

// The largest payload that nwaku and go-waku accept (150 KiB) minus the other fields.
const largePayloadBytes = 149 << 10

func TestRelayOverAConnectionThatGoWakuOpened(t *testing.T) {
	s := startServer(t)
	for name, address := range map[string]multiaddr.Multiaddr{"tcp": s.tcp, "websocket": s.webSocket} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, relayOption())
			arriving := follow(t, n)
			dial(t, n, address)
			joined(t, n, s)

			toServer := messages("/interop/1/to-server-"+name+"/proto", 100)
			relayed(t, n, toServer)
			kept(t, s, toServer)

			fromServer := messages("/interop/1/from-server-"+name+"/proto", 100)
			s.publish(t, fromServer...)
			receive(t, arriving, fromServer)
		})
	}
}

func TestRelayOverAConnectionThatTheServerOpened(t *testing.T) {
	n := startNode(t, relayOption())
	arriving := follow(t, n)
	s := startServer(t, "--staticnode", tcpAddress(t, n.ListenAddresses()))
	joined(t, n, s)

	fromServer := messages("/interop/1/from-server/proto", 100)
	s.publish(t, fromServer...)
	receive(t, arriving, fromServer)

	toServer := messages("/interop/1/to-server/proto", 100)
	relayed(t, n, toServer)
	kept(t, s, toServer)
}

func TestTheServerCarriesMessagesBetweenNodesThatDontKnowEachOther(t *testing.T) {
	s := startServer(t)
	one, other := startNode(t, relayOption()), startNode(t, relayOption())
	arriving := follow(t, other)
	follow(t, one)
	dial(t, one, s.tcp)
	dial(t, other, s.tcp)
	joined(t, one, s)
	meshed(t, one, arriving)

	carried := messages("/interop/1/carried/proto", 100)
	relayed(t, one, carried)
	receive(t, arriving, carried)
	kept(t, s, carried)
}

// As in nwaku: relay forwards them, but the archive does not store them.
func TestOldAndEphemeralMessagesAreCarriedAndNotArchived(t *testing.T) {
	s := startServer(t)
	one, other := startNode(t, relayOption()), startNode(t, relayOption())
	arriving := follow(t, other)
	follow(t, one)
	dial(t, one, s.tcp)
	dial(t, other, s.tcp)
	joined(t, one, s)
	meshed(t, one, arriving)

	three := messages("/interop/1/three/proto", 3)
	old, ephemeral, plain := three[0], three[1], three[2]
	old.Timestamp = proto.Int64(old.GetTimestamp() - longAgo.Nanoseconds())
	ephemeral.Ephemeral = proto.Bool(true)
	relayed(t, one, three)
	receive(t, arriving, three)
	kept(t, s, []*pb.WakuMessage{plain})
}

func TestALargeMessageIsRelayedInBothDirections(t *testing.T) {
	s := startServer(t)
	n := startNode(t, relayOption())
	arriving := follow(t, n)
	dial(t, n, s.tcp)
	joined(t, n, s)

	for _, direction := range []string{"to-server", "from-server"} {
		large := messages(fmt.Sprintf("/interop/1/large-%s/proto", direction), 1)
		large[0].Payload = bytes.Repeat([]byte("large "), largePayloadBytes/6)
		if direction == "to-server" {
			relayed(t, n, large)
		} else {
			s.publish(t, large...)
			receive(t, arriving, large)
		}
		kept(t, s, large)
	}
}

func TestAMessageThatTwoNodesPublishIsArchivedOnce(t *testing.T) {
	s := startServer(t)
	one, other := startNode(t, relayOption()), startNode(t, relayOption())
	follow(t, one)
	follow(t, other)
	dial(t, one, s.tcp)
	dial(t, other, s.tcp)
	joined(t, one, s)
	joined(t, other, s)

	twice := messages("/interop/1/twice/proto", 10)
	relayed(t, one, twice)
	relayed(t, other, twice)
	kept(t, s, twice)
}

func TestANodeOfAnotherClusterIsNotServed(t *testing.T) {
	s := startServer(t)
	n := startNodeOf(t, clusterID+1, relayOption())
	_ = n.DialPeerWithMultiAddress(bounded(t), s.tcp)
	until(t, "the end of the connection", func() bool {
		return n.Host().Network().Connectedness(s.id) != network.Connected
	})
}

func tcpAddress(t *testing.T, addresses []multiaddr.Multiaddr) string {
	t.Helper()
	for _, address := range addresses {
		text := address.String()
		if strings.HasPrefix(text, "/ip4/127.0.0.1/tcp/") && !strings.Contains(text, "/ws") {
			return text
		}
	}
	t.Fatalf("go-waku has no TCP listener on loopback: %v", addresses)
	return ""
}
