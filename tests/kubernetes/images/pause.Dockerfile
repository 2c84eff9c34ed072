# What holds a pod's namespaces.
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
