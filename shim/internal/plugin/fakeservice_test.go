package plugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"muster.dev/shim/internal/musterv1"
)

// fakeService serves the contract over a Unix socket. Its function fields determine the answers.
type fakeService struct {
	musterv1.UnimplementedGangServiceServer
	t      testing.TB
	socket string
	server *grpc.Server

	filter  func(*musterv1.FilterRequest) (*musterv1.FilterResponse, error)
	score   func(*musterv1.ScoreRequest) (*musterv1.ScoreResponse, error)
	reserve func(context.Context, *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error)
	permit  func(*musterv1.PermitRequest) (*musterv1.PermitResponse, error)

	mu        sync.Mutex
	epoch     uint64
	calls     map[string]int
	responses chan *musterv1.WatchResponse

	watches chan *musterv1.WatchRequest
	reports chan *musterv1.UnreserveRequest
	inTree  chan *musterv1.ReportInTreeRequest
}

func newFakeService(t testing.TB) *fakeService {
	dir, err := os.MkdirTemp("", "muster") // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &fakeService{
		t: t, socket: filepath.Join(dir, "s"), calls: map[string]int{},
		watches: make(chan *musterv1.WatchRequest, 100), reports: make(chan *musterv1.UnreserveRequest, 100), inTree: make(chan *musterv1.ReportInTreeRequest, 100),
		reserve: func(context.Context, *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
			return &musterv1.ReserveResponse{Claimed: true}, nil
		},
	}
	return s
}

func (s *fakeService) start() {
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.epoch++
	s.responses = make(chan *musterv1.WatchResponse, 100)
	s.mu.Unlock()
	server := grpc.NewServer()
	s.server = server
	musterv1.RegisterGangServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(server.Stop)
}

func (s *fakeService) kill() { s.server.Stop() }

func (s *fakeService) push(v *musterv1.Verdict) { s.pushPart(v, false) }

func (s *fakeService) pushPart(v *musterv1.Verdict, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.responses <- &musterv1.WatchResponse{Event: &musterv1.WatchResponse_Verdict{Verdict: v}, More: more}
}

func (s *fakeService) ask(q *musterv1.InTreeQuestion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.responses <- &musterv1.WatchResponse{Event: &musterv1.WatchResponse_InTreeQuestion{InTreeQuestion: q}}
}

func (s *fakeService) ReportInTree(_ context.Context, r *musterv1.ReportInTreeRequest) (*musterv1.ReportInTreeResponse, error) {
	s.inTree <- r
	return &musterv1.ReportInTreeResponse{}, nil
}

func (s *fakeService) count(method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
}

// called returns the unary calls so far, as "Filter 1 Permit 1 …".
func (s *fakeService) called() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("Filter %d Score %d Reserve %d Permit %d", s.calls["Filter"], s.calls["Score"], s.calls["Reserve"], s.calls["Permit"])
}

func (s *fakeService) Watch(r *musterv1.WatchRequest, stream grpc.ServerStreamingServer[musterv1.WatchResponse]) error {
	s.mu.Lock()
	epoch, responses := s.epoch, s.responses
	s.mu.Unlock()
	s.watches <- r
	opened := &musterv1.WatchResponse{Event: &musterv1.WatchResponse_SessionOpened{SessionOpened: &musterv1.SessionOpened{Epoch: epoch}}}
	if err := stream.Send(opened); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case response := <-responses:
			if err := stream.Send(response); err != nil {
				return err
			}
		}
	}
}

func (s *fakeService) Filter(_ context.Context, r *musterv1.FilterRequest) (*musterv1.FilterResponse, error) {
	s.count("Filter")
	s.mu.Lock()
	answer := s.filter
	s.mu.Unlock()
	return answer(r)
}

func (s *fakeService) Score(_ context.Context, r *musterv1.ScoreRequest) (*musterv1.ScoreResponse, error) {
	s.count("Score")
	s.mu.Lock()
	answer := s.score
	s.mu.Unlock()
	return answer(r)
}

func (s *fakeService) Reserve(ctx context.Context, r *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
	s.count("Reserve")
	return s.reserve(ctx, r)
}

func (s *fakeService) Permit(_ context.Context, r *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
	s.count("Permit")
	s.mu.Lock()
	answer := s.permit
	s.mu.Unlock()
	return answer(r)
}

func (s *fakeService) Unreserve(_ context.Context, r *musterv1.UnreserveRequest) (*musterv1.UnreserveResponse, error) {
	s.reports <- r
	return &musterv1.UnreserveResponse{}, nil
}

// refuse answers Filter for a refused gang.
func (s *fakeService) refuse(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = func(*musterv1.FilterRequest) (*musterv1.FilterResponse, error) {
		return &musterv1.FilterResponse{Reason: reason}, nil
	}
}

// plan answers Filter, Score and Permit with these candidates for each member, the planned node first.
func (s *fakeService) plan(candidates ...[]string) {
	filter, score, permit := &musterv1.FilterResponse{Offsets: []uint32{0}}, &musterv1.ScoreResponse{},
		&musterv1.PermitResponse{Allowed: true, AnnotationKeys: []string{"gpu.topology/allocation"}}
	index := map[string]uint32{}
	for i, nodes := range candidates {
		for at, node := range nodes {
			if _, ok := index[node]; !ok {
				index[node] = uint32(len(filter.Nodes))
				filter.Nodes = append(filter.Nodes, node)
			}
			filter.Candidates = append(filter.Candidates, index[node])
			score.Scores = append(score.Scores, uint32(100-at))
		}
		filter.Offsets = append(filter.Offsets, uint32(len(filter.Candidates)))
		permit.AnnotationValues = append(permit.AnnotationValues, fmt.Sprintf("gpus of %d", i))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = func(*musterv1.FilterRequest) (*musterv1.FilterResponse, error) { return filter, nil }
	s.score = func(*musterv1.ScoreRequest) (*musterv1.ScoreResponse, error) { return score, nil }
	s.permit = func(*musterv1.PermitRequest) (*musterv1.PermitResponse, error) { return permit, nil }
}

// gate blocks a call until the gate is opened, at the end of the test at the latest.
type gate struct {
	requested chan struct{}
	stand     <-chan struct{}
	open      func()
}

func newGate(t testing.TB) *gate {
	stand := make(chan struct{})
	g := &gate{requested: make(chan struct{}, 10), stand: stand, open: sync.OnceFunc(func() { close(stand) })}
	t.Cleanup(g.open)
	return g
}

func (g *gate) pass() {
	g.requested <- struct{}{}
	<-g.stand
}

// holdPermit makes Permit wait at a gate and then answer as before.
func (s *fakeService) holdPermit() *gate {
	g, allow := newGate(s.t), s.permit
	s.permit = func(r *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
		g.pass()
		return allow(r)
	}
	return g
}

// holdReserve makes Reserve wait at a gate and then answer as before.
func (s *fakeService) holdReserve() *gate {
	g, claimed := newGate(s.t), s.reserve
	s.reserve = func(ctx context.Context, r *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
		g.pass()
		return claimed(ctx, r)
	}
	return g
}

// next waits for one value from a channel.
func next[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(5 * time.Minute):
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}
