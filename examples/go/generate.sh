#!/bin/sh
# Write the stubs into ./pb from the protos of the repository.
# PYTHON must have grpcio-tools (`make setup` of the repository brings it): it has the compiler.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
protos=${PROTOS:-$here/../../proto}
bin=${GOBIN:-$here/bin}
export GOBIN="$bin"
go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.6
go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1
mkdir -p "$here/pb"
options=module=icecore.example
for each in common coordinator admin data; do
    options="$options,Micecore/v1/$each.proto=icecore.example/pb;pb"
done
cd "$protos"
PATH="$bin:$PATH" "${PYTHON:-python3}" -m grpc_tools.protoc -I . \
    --go_out="$here" --go_opt="$options" --go-grpc_out="$here" --go-grpc_opt="$options" \
    icecore/v1/common.proto icecore/v1/coordinator.proto icecore/v1/admin.proto icecore/v1/data.proto
