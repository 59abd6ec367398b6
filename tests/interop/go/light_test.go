package interop

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/filter"
	"github.com/waku-org/go-waku/waku/v2/protocol/lightpush"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/subscription"
	"google.golang.org/protobuf/proto"
)

// go-waku accepts a burst of 20 pushes of a peer and 15 a second after that; it resets the streams of further ones.
const pushes = 15

func startLight(t *testing.T, s *server) *node.WakuNode {
	t.Helper()
	n := startNode(t, node.WithWakuFilterLightNode())
	dial(t, n, s.tcp)
	return n
}

func subscribe(t *testing.T, n *node.WakuNode, s *server, contentTopic string) *subscription.SubscriptionDetails {
	t.Helper()
	wanted := protocol.NewContentFilter(pubsubTopic, contentTopic)
	subscriptions, err := n.FilterLightnode().Subscribe(bounded(t), wanted, filter.WithPeer(s.id))
	must(t, err)
	if len(subscriptions) != 1 {
		t.Fatalf("%d subscriptions", len(subscriptions))
	}
	return subscriptions[0]
}

func TestFilterSendsWhatWasSubscribedTo(t *testing.T) {
	s := startServer(t)
	n := startLight(t, s)
	topic := "/interop/1/filter/proto"
	arriving := subscribe(t, n, s, topic).C
	wanted := messages(topic, pushes)
	s.publish(t, append(messages("/interop/1/others/proto", 10), wanted...)...)
	receive(t, arriving, wanted)
}

func TestFilterSendsWhatCameByRelay(t *testing.T) {
	s := startServer(t)
	n := startLight(t, s)
	publisher := startNode(t, relayOption())
	follow(t, publisher)
	dial(t, publisher, s.tcp)
	joined(t, publisher, s)
	topic := "/interop/1/filter-relay/proto"
	arriving := subscribe(t, n, s, topic).C
	wanted := messages(topic, pushes)
	relayed(t, publisher, wanted)
	receive(t, arriving, wanted)
}

// The server's answer to a ping shows whether it has a subscription.
func TestFilterForgetsWhoUnsubscribed(t *testing.T) {
	s := startServer(t)
	n := startLight(t, s)
	topic := "/interop/1/filter-left/proto"
	isNotFound(t, n.FilterLightnode().Ping(bounded(t), s.id))

	subscribe(t, n, s, topic)
	must(t, n.FilterLightnode().Ping(bounded(t), s.id))

	wanted := protocol.NewContentFilter(pubsubTopic, topic)
	waiting := filter.WithWaitGroup(new(sync.WaitGroup))
	result, err := n.FilterLightnode().Unsubscribe(bounded(t), wanted, filter.WithPeer(s.id), waiting)
	must(t, err)
	for _, each := range result.Errors() {
		must(t, each.Err)
	}
	isNotFound(t, n.FilterLightnode().Ping(bounded(t), s.id))
}

func isNotFound(t *testing.T, err error) {
	t.Helper()
	var refused *filter.FilterError
	if !errors.As(err, &refused) || refused.Code != http.StatusNotFound {
		t.Fatalf("expected 404 of a server that knows no subscription, got %v", err)
	}
}

func push(t *testing.T, n *node.WakuNode, s *server, message *pb.WakuMessage) error {
	t.Helper()
	to := []lightpush.RequestOption{lightpush.WithPeer(s.id), lightpush.WithPubSubTopic(pubsubTopic)}
	_, err := n.Lightpush().Publish(bounded(t), message, to...)
	return err
}

// go-waku speaks only version 2 of lightpush.
func TestLightpushReachesArchiveFilterAndRelay(t *testing.T) {
	s := startServer(t)
	n := startLight(t, s)
	neighbour := startNode(t, relayOption())
	byRelay := follow(t, neighbour)
	dial(t, neighbour, s.tcp)
	joined(t, neighbour, s)
	topic := "/interop/1/push/proto"
	byFilter := subscribe(t, n, s, topic).C

	pushed := messages(topic, 10)
	for _, message := range pushed {
		must(t, push(t, n, s, message))
	}
	kept(t, s, pushed)
	receive(t, byFilter, pushed)
	receive(t, byRelay, pushed)
}

func TestLightpushTellsWhyAMessageIsRefused(t *testing.T) {
	s := startServer(t)
	n := startLight(t, s)
	old := messages("/interop/1/push-old/proto", 1)[0]
	old.Timestamp = proto.Int64(old.GetTimestamp() - longAgo.Nanoseconds())
	if err := push(t, n, s, old); err == nil {
		t.Fatal("a message of an hour ago was accepted")
	}
	if hashes := s.archived(t, old.ContentTopic); len(hashes) != 0 {
		t.Fatalf("refused but archived: %v", hashes)
	}
}
