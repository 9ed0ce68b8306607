// Package client speaks to a cluster by its gRPC interface: it finds leaders, and tells errors that
// pass from those that do not (docs/reference/errors.md).
package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"icecore.example/pb"
)

const (
	callTimeout    = 5 * time.Second
	pauseFirst     = 30 * time.Millisecond
	pauseMost      = time.Second
	answerBytes    = 16 << 20 // a batch has 8 MiB at most
	inTransit      = "UNAVAILABLE"
	deadlinePassed = "TIMEOUT"
)

// again are the reasons after which the same request may succeed later; the table in docs/reference/errors.md.
var again = map[string]bool{}

func init() {
	for _, each := range []pb.Reason{
		pb.Reason_REASON_UNKNOWN_TOPIC_OR_PARTITION, pb.Reason_REASON_NOT_LEADER,
		pb.Reason_REASON_FENCED, pb.Reason_REASON_ROLLING, pb.Reason_REASON_NOT_REPLICA,
		pb.Reason_REASON_NOT_ENOUGH_REPLICAS, pb.Reason_REASON_READ_ONLY,
		pb.Reason_REASON_THROTTLED, pb.Reason_REASON_NOT_COORDINATOR, pb.Reason_REASON_CONFLICT,
		pb.Reason_REASON_NOT_ENOUGH_REPLICAS_AFTER_APPEND, pb.Reason_REASON_LEADER_LOST,
		pb.Reason_REASON_TIMEOUT, pb.Reason_REASON_UNAVAILABLE, pb.Reason_REASON_OUT_OF_SPACE,
		pb.Reason_REASON_OUT_OF_RESOURCES,
	} {
		again[strings.TrimPrefix(each.String(), "REASON_")] = true
	}
}

// Error is what a server answered, or what gRPC said of the connection.
type Error struct {
	Reason   string
	Message  string
	Metadata map[string]string
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Passes tells whether the same request may succeed later.
func (e *Error) Passes() bool { return again[e.Reason] }

// failure is the Error of a failed call.
func failure(err error) *Error {
	found := status.Convert(err)
	for _, detail := range found.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "icecore" {
			return &Error{info.Reason, found.Message(), info.Metadata}
		}
	}
	switch found.Code().String() {
	case "Unavailable", "Canceled":
		return &Error{inTransit, found.Message(), nil}
	case "DeadlineExceeded":
		return &Error{deadlinePassed, found.Message(), nil}
	}
	return &Error{"INTERNAL", found.Message(), nil}
}

// refusal is the Error of one item of an answer; nil when it is fine.
func refusal(message *pb.Error) *Error {
	if message.GetReason() == "" {
		return nil
	}
	return &Error{message.Reason, message.Message, message.Metadata}
}

// Client knows one cluster. It may be used by several goroutines.
type Client struct {
	bootstrap []string
	mutex     sync.Mutex
	channels  map[string]*grpc.ClientConn
	addresses map[uint32]string // of nodes
	clusterID []byte
}

// New does not connect yet. The addresses are those of coordinators.
func New(bootstrap string) *Client {
	return &Client{
		bootstrap: strings.Split(bootstrap, ","),
		channels:  map[string]*grpc.ClientConn{},
		addresses: map[uint32]string{},
	}
}

// Close ends all connections.
func (c *Client) Close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, each := range c.channels {
		_ = each.Close() // nothing of ours is under way any more
	}
}

func (c *Client) channel(address string) (*grpc.ClientConn, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if found := c.channels[address]; found != nil {
		return found, nil
	}
	made, err := grpc.NewClient(
		"passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			// A node that was killed is back within seconds; the default waits minutes.
			Backoff:           backoff.Config{BaseDelay: pauseFirst, Multiplier: 2, MaxDelay: pauseMost},
			MinConnectTimeout: callTimeout,
		}),
	)
	if err == nil {
		c.channels[address] = made
	}
	return made, err
}

// node is the service of a node. Its address is known from the last Topic.
func (c *Client) node(id uint32) (pb.DataServiceClient, error) {
	c.mutex.Lock()
	address := c.addresses[id]
	c.mutex.Unlock()
	if address == "" {
		return nil, &Error{inTransit, fmt.Sprintf("the address of node %d is unknown", id), nil}
	}
	channel, err := c.channel(address)
	if err != nil {
		return nil, err
	}
	return pb.NewDataServiceClient(channel), nil
}

// Topic asks who leads what now.
func (c *Client) Topic(ctx context.Context, name string) (*pb.TopicMetadata, error) {
	var found *pb.TopicMetadata
	err := c.admin(ctx, func(ctx context.Context, admin pb.AdminServiceClient) error {
		answer, err := admin.GetMetadata(ctx, &pb.GetMetadataRequest{Topics: []string{name}})
		if err != nil {
			return failure(err)
		}
		c.mutex.Lock()
		for _, each := range answer.Nodes {
			c.addresses[each.NodeId] = each.Address
		}
		c.clusterID = answer.ClusterId
		c.mutex.Unlock()
		found = answer.Topics[0]
		if why := refusal(found.Error); why != nil {
			return why
		}
		return nil
	})
	return found, err
}

// admin makes one call to the coordinators in turn until one of them answers.
func (c *Client) admin(ctx context.Context, call func(context.Context, pb.AdminServiceClient) error) error {
	var last error
	for _, address := range c.bootstrap {
		channel, err := c.channel(strings.TrimSpace(address))
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		last = call(limited, pb.NewAdminServiceClient(channel))
		cancel()
		var why *Error
		if last == nil || errors.As(last, &why) && !why.Passes() {
			return last
		}
	}
	return last
}

// retry calls until it succeeds, the error does not pass, or ctx ends; then the last error is told.
func retry(ctx context.Context, call func() error) error {
	pause := pauseFirst
	for {
		err := call()
		var why *Error
		if err == nil || !errors.As(err, &why) || !why.Passes() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last reason was %w", ctx.Err(), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, pauseMost)
	}
}
