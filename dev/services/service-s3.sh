# An S3 server: the Versity S3 Gateway over a plain folder. Each object is a file, its metadata are extended attributes.
# Quick to build, small, and its objects can be inspected with ls; `minio` is the bigger alternative.
# Access key 'restante', secret key 'restante-secret'.
# shellcheck shell=bash
VERSITYGW_VERSION=v1.8.0

s3_install() {
  need_debian "have curl" curl
  go_program "$DL/s3-$VERSITYGW_VERSION/versitygw" "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION"
}
s3_start() {
  local opts=()
  need_free_ports s3 "$PORT" 1
  mkdir -p "$DATA/s3/objects"
  # Where extended attributes don't work (or can't be tried), the metadata are stored in a side folder.
  if ! s3_xattr_works; then mkdir -p "$DATA/s3/meta"; opts=(--sidecar "$DATA/s3/meta"); fi
  spawn s3 "$DL/s3-$VERSITYGW_VERSION/versitygw" --port "127.0.0.1:$PORT" --region us-east-1 \
    --access restante --secret restante-secret --health /health --quiet posix "${opts[@]}" "$DATA/s3/objects"
}
s3_xattr_works() {
  python3 - "$DATA/s3" <<'PY' 2>/dev/null
import os, sys
os.setxattr(sys.argv[1], "user.restante", b"1")
os.removexattr(sys.argv[1], "user.restante")
PY
}
s3_ready() { curl -sf -m 2 "http://127.0.0.1:$PORT/health" && s3_bucket; }
# Creates the bucket that RESTANTE_S3_BUCKET names, if it does not exist.
s3_bucket() {
  local of_nothing=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  curl -s -m 5 -o /dev/null -X PUT -H "x-amz-content-sha256: $of_nothing" --aws-sigv4 aws:amz:us-east-1:s3 \
    --user restante:restante-secret "http://127.0.0.1:$PORT/restante"
}
s3_stop() { stop_pid s3 TERM 20; }
s3_env() {
  echo "export RESTANTE_S3_URL=http://127.0.0.1:$PORT RESTANTE_S3_REGION=us-east-1 RESTANTE_S3_BUCKET=restante"
  echo "export RESTANTE_S3_ACCESS_KEY=restante RESTANTE_S3_SECRET_KEY=restante-secret"
}
