# Stands in for python:3.11-slim-bookworm: Debian's own packages, put together by mmdebstrap.
FROM scratch
ADD base.tar /
# As this machine trusts, for pip inside a build.
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# As the official image has it: apt keeps nothing that it has fetched.
COPY docker-clean /etc/apt/apt.conf.d/docker-clean
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
CMD ["python3"]
