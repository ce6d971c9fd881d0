// The controllers of JobSet and of Kubeflow's MPI operator (MPIJob v2) in one process, without webhooks, certificates and
// leader election, so that they run next to a test's API server. What makes Jobs of a JobSet, and workers and a launcher
// of an MPIJob, is those projects' own code. Part of Bireme's test kit; operators.py runs it with --kubeconfig.
package main

import (
	"context"
	"flag"
	"log"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	mpijobs "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	mpischeme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	mpiinformers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	mpi "github.com/kubeflow/mpi-operator/pkg/controller"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clients "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
)

const (
	threads = 2
	// More than a test ever asks, so that no controller waits for its own limits.
	requestsASecond = 200
)

func main() {
	flag.Parse() // controller-runtime adds --kubeconfig
	ctrl.SetLogger(zap.New())
	config := ctrl.GetConfigOrDie()
	config.QPS, config.Burst = requestsASecond, requestsASecond
	ctx := ctrl.SetupSignalHandler()
	go func() {
		if err := runMPI(ctx, config); err != nil {
			log.Fatalf("MPIJob: %v", err)
		}
	}()
	if err := runJobSet(ctx, config); err != nil {
		log.Fatalf("JobSet: %v", err)
	}
}

func runJobSet(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clients.AddToScheme(scheme))
	utilruntime.Must(jobset.AddToScheme(scheme))
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metrics.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	if err := controllers.SetupJobSetIndexes(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	recorder := manager.GetEventRecorderFor("jobset")
	if err := controllers.NewJobSetReconciler(manager.GetClient(), scheme, recorder).SetupWithManager(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}

func runMPI(ctx context.Context, config *rest.Config) error {
	utilruntime.Must(mpischeme.AddToScheme(clients.Scheme)) // the controller's events name their object with it
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	jobs, err := mpijobs.NewForConfig(config)
	if err != nil {
		return err
	}
	ours, theirs := informers.NewSharedInformerFactory(kube, 0), mpiinformers.NewSharedInformerFactory(jobs, 0)
	limits := &options.ServerOption{ControllerRateLimit: requestsASecond, ControllerBurst: requestsASecond}
	controller, err := mpi.NewMPIJobController(
		ctx, kube, jobs, nil, nil,
		ours.Core().V1().ConfigMaps(), ours.Core().V1().Secrets(), ours.Core().V1().Services(),
		ours.Batch().V1().Jobs(), ours.Core().V1().Pods(), ours.Scheduling().V1().PriorityClasses(),
		theirs.Kubeflow().V2beta1().MPIJobs(), limits,
	)
	if err != nil {
		return err
	}
	ours.Start(ctx.Done())
	theirs.Start(ctx.Done())
	return controller.Run(threads, ctx.Done())
}
