// A device plugin that offers fake GPUs to a real kubelet, so that the kubelet itself counts, assigns and announces
// them. It does what NVIDIA's does as far as a scheduler or a job can see: one resource, stable ids, and a variable
// that lists the devices a container was given. Part of Bireme's test kit; run by real_nodes.py on every node.
package main

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const lookAgain = 500 * time.Millisecond

type plugin struct {
	api.UnimplementedDevicePluginServer
	resource string
	variable string
	devices  []*api.Device
	ended    <-chan struct{}
}

func main() {
	resource := flag.String("resource", "nvidia.com/gpu", "the name under which pods ask for the devices")
	variable := flag.String("variable", "NVIDIA_VISIBLE_DEVICES", "the variable that lists a container's devices")
	node := flag.String("node", "", "makes the ids of this node's devices different from those of others")
	count := flag.Int("count", 8, "how many devices")
	folder := flag.String("folder", api.DevicePluginPath, "where the kubelet's socket lies")
	flag.Parse()
	for {
		if err := serve(*resource, *variable, *folder, devices(*node, *count)); err != nil {
			log.Print(err)
		}
		time.Sleep(lookAgain)
	}
}

// serve registers with the kubelet and returns when its socket is gone: a kubelet that starts anew removes all of them.
func serve(resource, variable, folder string, devices []*api.Device) error {
	name := "bireme-test-" + strings.NewReplacer("/", "-", ".", "-").Replace(resource) + ".sock"
	path := filepath.Join(folder, name)
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	server := grpc.NewServer()
	defer server.Stop()
	api.RegisterDevicePluginServer(server, &plugin{resource: resource, variable: variable, devices: devices, ended: ended})
	go func() { _ = server.Serve(listener) }()
	if err := register(filepath.Join(folder, "kubelet.sock"), name, resource); err != nil {
		return err
	}
	log.Printf("registered %d devices of %s", len(devices), resource)
	for {
		if _, err := os.Stat(path); err != nil {
			return nil
		}
		time.Sleep(lookAgain)
	}
}

func register(kubelet, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource, Options: &api.DevicePluginOptions{},
	})
	return err
}

func devices(node string, count int) []*api.Device {
	hashed := fnv.New32a()
	_, _ = hashed.Write([]byte(node))
	made := make([]*api.Device, count)
	for index := range made {
		id := fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", hashed.Sum32(), index)
		made[index] = &api.Device{ID: id, Health: api.Healthy}
	}
	return made
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-stream.Context().Done():
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		given := map[string]string{p.variable: strings.Join(container.DevicesIds, ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: given})
	}
	return answer, nil
}
