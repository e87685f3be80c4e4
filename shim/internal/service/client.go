// Package service connects the shim to the Muster service and bounds each call with a deadline. No call is made on
// the scheduling thread.
package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
)

const (
	// maxAnswer bounds one message of the service. The candidates of a gang with thousands of members take some
	// megabytes. Verdicts of larger gangs come in parts.
	maxAnswer = 16 << 20
	// maxRequest bounds one request. Watch has all Bindings in flight, and no session begins without it.
	maxRequest = 256 << 20
)

// reconnect makes gRPC reconnect after 0.1 s to 5 s, with jitter and without end.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
	MinConnectTimeout: time.Second,
}

// Client calls the service.
type Client struct {
	conn    *grpc.ClientConn
	gangs   musterv1.GangServiceClient
	timeout time.Duration
}

// Dial returns a client that connects on first use. The timeout bounds each unary call. Dial accepts only a Unix
// socket: the connection is not encrypted, and the file system's permissions protect the socket.
func Dial(address string, timeout time.Duration, options ...grpc.DialOption) (*Client, error) {
	if !strings.HasPrefix(address, "unix:") {
		return nil, fmt.Errorf("serviceAddress %q: only a Unix socket is supported (unix:///run/muster/muster.sock), since the connection is neither encrypted nor authenticated", address)
	}
	conn, err := grpc.NewClient(address, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(reconnect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxRequest)),
	)...)
	if err != nil {
		return nil, fmt.Errorf("serviceAddress %q: %w", address, err)
	}
	return &Client{conn: conn, gangs: musterv1.NewGangServiceClient(conn), timeout: timeout}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Watch opens a session. It waits for the socket without a deadline.
func (c *Client) Watch(ctx context.Context, request *musterv1.WatchRequest) (musterv1.GangService_WatchClient, error) {
	return c.gangs.Watch(ctx, request, grpc.WaitForReady(true))
}

// Filter returns the candidate nodes of a gang's members.
func (c *Client) Filter(ctx context.Context, plan *musterv1.PlanRef) (*musterv1.FilterResponse, error) {
	return call(ctx, c, "Filter", &musterv1.FilterRequest{Plan: plan}, c.gangs.Filter)
}

// Score returns the scores of the candidates that Filter returned.
func (c *Client) Score(ctx context.Context, plan *musterv1.PlanRef) (*musterv1.ScoreResponse, error) {
	return call(ctx, c, "Score", &musterv1.ScoreRequest{Plan: plan}, c.gangs.Score)
}

// Reserve asks the service to reserve a member's node.
func (c *Client) Reserve(ctx context.Context, request *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
	return call(ctx, c, "Reserve", request, c.gangs.Reserve)
}

// Permit asks whether the gang may bind.
func (c *Client) Permit(ctx context.Context, request *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
	return call(ctx, c, "Permit", request, c.gangs.Permit)
}

// Unreserve reports that a member will not get its node.
func (c *Client) Unreserve(ctx context.Context, request *musterv1.UnreserveRequest) error {
	_, err := call(ctx, c, "Unreserve", request, c.gangs.Unreserve)
	return err
}

// ReportInTree sends an answer, or a part of one, about in-tree plugins.
func (c *Client) ReportInTree(ctx context.Context, request *musterv1.ReportInTreeRequest) error {
	_, err := call(ctx, c, "ReportInTree", request, c.gangs.ReportInTree)
	return err
}

// IsStale returns whether the service no longer accepts the epoch or generation of the call.
func IsStale(err error) bool { return status.Code(err) == codes.FailedPrecondition }

// unary is a unary method of the gRPC client.
type unary[Request, Response any] func(context.Context, Request, ...grpc.CallOption) (Response, error)

// call makes one unary call within the client's timeout, and records its time.
func call[Request, Response any](ctx context.Context, c *Client, method string, request Request, do unary[Request, Response]) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	start := time.Now()
	response, err := do(ctx, request)
	metrics.RecordCall(method, status.Code(err).String(), time.Since(start))
	return response, err
}
