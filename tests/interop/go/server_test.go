package interop

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
)

const (
	clusterID   = 42
	shard       = 0
	pubsubTopic = "/waku/2/rs/42/0"

	// The time limit of a server's start and of deliveries: generous, for a busy machine.
	patience = 20 * time.Second
	// The time limit of a server's stop after SIGTERM before it is killed.
	grace = 10 * time.Second
	// Lines of a server's log that a failure shows.
	logLinesShown = 120
	// The log level of servers and go-waku's nodes.
	logVariable = "RESTANTE_INTEROP_LOG"
	// Concurrent requests when many messages are published.
	publishers = 16
)

// server is a running `restante serve` with a folder of its own.
type server struct {
	rest string
	// tcp and webSocket end with the peer id.
	tcp       multiaddr.Multiaddr
	webSocket multiaddr.Multiaddr
	id        peer.ID
}

// startServer starts a server on free ports and stops it at the end of the test. A failure shows the server's log.
func startServer(t *testing.T, flags ...string) *server {
	t.Helper()
	binary := os.Getenv("RESTANTE_BIN")
	if binary == "" {
		t.Fatal("RESTANTE_BIN is not set: start the tests by tests/interop/run")
	}
	folder := t.TempDir()
	logFile, err := os.Create(filepath.Join(folder, "server.log"))
	must(t, err)
	arguments := []string{
		"serve", "--data", filepath.Join(folder, "data"), "--rest-port", "0", "--tcp-port", "0",
		"--websocket-support", "--websocket-port", "0", "--cluster-id", fmt.Sprint(clusterID), "--shard", fmt.Sprint(shard),
		"--log-level", cmp.Or(os.Getenv(logVariable), "info"),
	}
	command := exec.Command(binary, append(arguments, flags...)...)
	command.Dir = folder
	command.Env = plainEnvironment()
	command.Stderr = logFile
	stdout, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		stopServer(t, command)
		if t.Failed() {
			showLog(t, logFile.Name())
		}
		logFile.Close()
	})
	s := &server{rest: readAddress(t, stdout)}
	s.readAddresses(t)
	return s
}

// plainEnvironment removes the caller's restante settings.
func plainEnvironment() []string {
	var plain []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "RESTANTE_") {
			plain = append(plain, variable)
		}
	}
	return plain
}

// readAddress reads the first line, which has the address of REST.
func readAddress(t *testing.T, stdout io.Reader) string {
	t.Helper()
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
		_, _ = io.Copy(io.Discard, stdout)
	}()
	line := within(t, "the server's first line", lines)
	address, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !found {
		t.Fatalf("the server's first line has no address: %q", line)
	}
	return address
}

// readAddresses waits until `/info` lists addresses with the peer id.
func (s *server) readAddresses(t *testing.T) {
	t.Helper()
	until(t, "addresses with the peer id in /info", func() bool {
		var info struct{ ListenAddresses []string }
		s.get(t, "/info", &info)
		for _, text := range info.ListenAddresses {
			if !strings.Contains(text, "/p2p/") {
				continue
			}
			address, err := multiaddr.NewMultiaddr(text)
			must(t, err)
			if strings.Contains(text, "/ws/") {
				s.webSocket = address
			} else {
				s.tcp = address
			}
		}
		return s.tcp != nil && s.webSocket != nil
	})
	info, err := peer.AddrInfoFromP2pAddr(s.tcp)
	must(t, err)
	s.id = info.ID
}

func stopServer(t *testing.T, command *exec.Cmd) {
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	_ = command.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the server failed: %v", err)
		}
	case <-time.After(grace):
		t.Errorf("the server did not end within %v of SIGTERM", grace)
		_ = command.Process.Kill()
		<-ended
	}
}

func showLog(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Logf("no log of the server: %v", err)
		return
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-logLinesShown):]
	t.Logf("the end of the server's log:\n  %s", strings.Join(lines, "\n  "))
}

func (s *server) get(t *testing.T, path string, answer any) {
	t.Helper()
	s.request(t, http.MethodGet, path, nil, func(body []byte) error { return json.Unmarshal(body, answer) })
}

func (s *server) request(t *testing.T, method, path string, body []byte, read func([]byte) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.rest+path, bytes.NewReader(body))
	must(t, err)
	request.Header.Set("content-type", "application/json")
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %s", method, path, response.Status, text)
	}
	must(t, read(text))
}

// publish sends messages to the server over REST, several at a time.
func (s *server) publish(t *testing.T, messages ...*pb.WakuMessage) {
	t.Helper()
	left := make(chan *pb.WakuMessage, len(messages))
	for _, message := range messages {
		left <- message
	}
	close(left)
	path := "/relay/v1/messages/" + url.PathEscape(pubsubTopic)
	var all sync.WaitGroup
	for range publishers {
		all.Add(1)
		go func() {
			defer all.Done()
			for message := range left {
				body, err := json.Marshal(map[string]any{
					"payload": message.Payload, "contentTopic": message.ContentTopic, "timestamp": message.Timestamp,
				})
				if err == nil {
					err = s.post(path, body)
				}
				if err != nil {
					t.Errorf("publishing: %v", err)
					return
				}
			}
		}()
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func (s *server) post(path string, body []byte) error {
	client := http.Client{Timeout: patience}
	response, err := client.Post(s.rest+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("POST %s: %s %s", path, response.Status, text)
	}
	return nil
}

// archived lists the hashes, as 0x-hex, of the archived messages of a content topic.
func (s *server) archived(t *testing.T, contentTopic string) map[string]bool {
	t.Helper()
	hashes := map[string]bool{}
	cursor := ""
	for {
		var page struct {
			Messages         []struct{ MessageHash string }
			PaginationCursor string
		}
		path := "/store/v3/messages?pageSize=100&contentTopics=" + url.QueryEscape(contentTopic)
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		s.get(t, path, &page)
		for _, message := range page.Messages {
			hashes[message.MessageHash] = true
		}
		if cursor = page.PaginationCursor; cursor == "" {
			return hashes
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until polls until the condition holds.
func until(t *testing.T, what string, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func within[T any](t *testing.T, what string, arriving <-chan T) T {
	t.Helper()
	select {
	case arrived := <-arriving:
		return arrived
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable: Fatalf ends the test")
	}
}
