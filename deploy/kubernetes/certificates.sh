#!/usr/bin/env bash
# Makes a CA, a certificate of the extender and one of the kube-scheduler:
#   certificates.sh FOLDER [NAME_OR_ADDRESS ...]
# Further names and addresses are those by which the extender is called.
set -euo pipefail
folder=${1:?a folder for the certificates}
shift
days=3650
service=scheduler-service.scheduler-service.svc
umask 077
mkdir -p "$folder"
cd "$folder"
names="DNS:$service,DNS:$service.cluster.local,DNS:localhost,IP:127.0.0.1"
for one in "$@"; do
    case $one in
        *:*) names+=",IP:$one" ;;
        *[!0-9.]*) names+=",DNS:$one" ;;
        *) names+=",IP:$one" ;;
    esac
done
key() {
    openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 \
        -out "$1" 2>/dev/null || openssl ecparam -name prime256v1 -genkey \
        -noout -out "$1"
}
signed() {
    key "$1.key"
    openssl req -new -key "$1.key" -subj "/CN=$2" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial \
        -days "$days" -out "$1.crt" -extfile <(printf '%s\n' \
        basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature \
        subjectKeyIdentifier=hash authorityKeyIdentifier=keyid "${@:3}"
        ) 2>/dev/null
    rm "$1.csr"
}
if [ ! -e ca.key ]; then
    key ca.key
    openssl req -x509 -key ca.key -days "$days" -out ca.crt \
        -subj /CN=scheduler-service-ca -addext keyUsage=critical,keyCertSign
fi
signed tls "$service" "subjectAltName=$names" extendedKeyUsage=serverAuth
signed client kube-scheduler extendedKeyUsage=clientAuth
