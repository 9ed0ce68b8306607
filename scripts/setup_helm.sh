#!/usr/bin/env bash
# Bring into a cache outside the checkout what `make check-helm` needs: Helm 3 and 4 and compose-go, which reads Compose files as Docker
# does, built with Go; Prometheus and promtool, out of Debian's package; kubernetes-validate, which has the schemas of Kubernetes
# inside, from the package index. Once: a second run finds them. With an argument only that one: helm, helm4, compose-go, prometheus,
# kubernetes-validate.
set -euo pipefail

helm3=v3.22.0
helm4=v4.3.2
compose=v2.16.2
validate=1.37.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/icecore
mkdir -p "$folder"
missing=()

is_there() { # name, version
    [ -e "$folder/$1" ] && [ "$(cat "$folder/$1.version" 2>/dev/null)" = "$2" ]
}

build() { # name, module, version
    is_there "$1" "$3" && return
    if ! command -v go >/dev/null; then
        missing+=("$1: there is no Go in PATH (https://go.dev/dl/)")
        return
    fi
    echo "building $1 $3 into $folder, which takes some minutes"
    local work
    work=$(mktemp -d)
    GOBIN=$work CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' "$2@$3"
    mv "$work/$(basename "$2")" "$folder/$1"
    rmdir "$work"
    echo "$3" >"$folder/$1.version"
}

bring_prometheus() {
    is_there promtool debian && is_there prometheus debian && return
    local work each
    work=$(mktemp -d)
    if (cd "$work" && apt-get download prometheus) >/dev/null 2>&1; then
        dpkg -x "$work"/prometheus_*.deb "$work"
        for each in prometheus promtool; do
            mv "$work/usr/bin/$each" "$folder/$each"
            echo debian >"$folder/$each.version"
        done
    else
        missing+=("prometheus: there is no Debian package of that name; put prometheus and promtool into PATH")
    fi
    rm -rf "$work"
}

bring_validate() {
    is_there kubernetes-validate "$validate" && return
    rm -rf "$folder/kubernetes-validate"
    if "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --root-user-action ignore \
        --target "$folder/kubernetes-validate" "kubernetes-validate==$validate"; then
        echo "$validate" >"$folder/kubernetes-validate.version"
    else
        missing+=("kubernetes-validate: the package index did not give it")
    fi
}

wanted=${1:-all}
[[ $wanted =~ ^(all|helm)$ ]] && build helm helm.sh/helm/v3/cmd/helm "$helm3"
[[ $wanted =~ ^(all|helm4)$ ]] && build helm4 helm.sh/helm/v4/cmd/helm "$helm4"
[[ $wanted =~ ^(all|compose-go)$ ]] && build compose-go github.com/compose-spec/compose-go/v2/cmd "$compose"
[[ $wanted =~ ^(all|prometheus)$ ]] && bring_prometheus
[[ $wanted =~ ^(all|kubernetes-validate)$ ]] && bring_validate
for each in "${missing[@]}"; do
    echo "could not be had: $each" >&2
done
exit $((${#missing[@]} > 0))
