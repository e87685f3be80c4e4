package service

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"muster.dev/shim/internal/musterv1"
)

func TestOnlyUnixSockets(t *testing.T) {
	for _, address := range []string{"127.0.0.1:9000", "dns:///muster:9000", "passthrough:///x", ""} {
		if _, err := Dial(context.Background(), address, Deadlines{}); err == nil || !strings.Contains(err.Error(), "Unix socket") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// hung answers Reserve only when it is let.
type hung struct {
	musterv1.UnimplementedGangServiceServer
	calls atomic.Int32
	awake atomic.Bool
}

func (h *hung) Reserve(ctx context.Context, _ *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
	h.calls.Add(1)
	if !h.awake.Load() {
		<-ctx.Done()
	}
	return &musterv1.ReserveResponse{Claimed: true}, nil
}

// TestBreaker: a hung service costs some deadlines, then nothing, until it answers a probe.
func TestBreaker(t *testing.T) {
	dir, err := os.MkdirTemp("", "muster")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, h := grpc.NewServer(), &hung{}
	musterv1.RegisterGangServiceServer(server, h)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c, err := Dial(ctx, "unix://"+socket, Deadlines{Fetch: time.Second, Hook: 50 * time.Millisecond, Misses: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	answered := make(chan struct{})
	c.breaker.probe = func(context.Context) error { <-answered; return errors.New("unimplemented") }

	for range 2 {
		if _, err := c.Reserve(ctx, &musterv1.ReserveRequest{}); err == nil || errors.Is(err, ErrOpen) {
			t.Fatalf("want a missed deadline, got %v", err)
		}
	}
	for range 5 {
		if _, err := c.Reserve(ctx, &musterv1.ReserveRequest{}); !errors.Is(err, ErrOpen) {
			t.Fatalf("want an open breaker, got %v", err)
		}
	}
	if got := h.calls.Load(); got != 2 {
		t.Errorf("%d calls reached the service, want 2", got)
	}
	h.awake.Store(true)
	close(answered)
	for c.breaker.isOpen() {
		time.Sleep(time.Millisecond)
	}
	if _, err := c.Reserve(ctx, &musterv1.ReserveRequest{}); err != nil {
		t.Error(err)
	}
}
