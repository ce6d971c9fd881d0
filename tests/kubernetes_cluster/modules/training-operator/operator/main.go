// Kubeflow's training operator with all of its controllers and without its admission webhook, so that it runs as a plain
// process next to a test's API server: the webhook needs a service, a DNS name and a certificate that a kubelet mounts.
// What makes pods of a PyTorchJob or an MPIJob is Kubeflow's own code. Part of Bireme's test kit; training_operator.py
// runs it with --kubeconfig.
package main

import (
	"flag"
	"log"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllers "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clients "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	plugins "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	volcano "volcano.sh/apis/pkg/apis/scheduling/v1beta1"
)

const threads = 2

func main() {
	image := flag.String("image", "none", "of the containers that the operator adds to pods")
	flag.Parse() // controller-runtime adds --kubeconfig
	ctrl.SetLogger(zap.New())
	config.Config.PyTorchInitContainerImage = *image
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	config.Config.MPIKubectlDeliveryImage = *image

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clients.AddToScheme, kubeflow.AddToScheme, volcano.AddToScheme, plugins.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metrics.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		log.Fatal(err)
	}
	for kind, setUp := range controllers.SupportedSchemeReconciler {
		if err := setUp(manager, common.GenNonGangSchedulerSetupFunc(), threads); err != nil {
			log.Fatalf("%s: %v", kind, err)
		}
	}
	if err := manager.Start(ctrl.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}
