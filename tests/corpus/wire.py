"""Every version of ApiVersions, asked for without a client's help. Answers with addresses: tests/vectors."""

from typing import Any

from tests.corpus.job import Job, item
from tests.corpus.tools import leave_out
from tests.support.raw_client import RawClient


def _offered(client: RawClient, request_class: Any) -> range:
    """Versions that both the broker and kafka-python know. Kafka 4 advertises Produce 0 to 2 and refuses them."""
    from kafka.protocol.metadata import ApiVersionsRequest

    answer = client.ask(ApiVersionsRequest(version=0)).message
    (found,) = [each for each in answer.api_keys if each.api_key == request_class.API_KEY]
    oldest, newest = request_class.valid_versions
    return range(max(found.min_version, oldest), min(found.max_version, newest) + 1)


@item()
def api_versions(job: Job) -> Any:
    """What the broker offers, at each version of the question; an unknown version is answered as version 0."""
    from kafka.protocol.metadata import ApiVersionsRequest

    result: dict[str, Any] = {}
    with RawClient(job.bootstrap.split(",")[0]) as client:
        for version in _offered(client, ApiVersionsRequest):
            request = ApiVersionsRequest(version=version, client_software_name="corpus", client_software_version="1.0")
            answer = client.ask(request).message.to_dict()
            result[f"v{version}"] = leave_out(answer, "finalized_features_epoch")
        # Version 9 does not exist: error 35 in a body of version 0, whatever was asked (KIP-511). At its end is
        # the newest version, which the sidecar says of itself.
        newest = ApiVersionsRequest(version=3, client_software_name="corpus", client_software_version="1.0")
        frame = bytearray(client.frame(newest))
        frame[6:8] = (9).to_bytes(2, "big")
        client.send(bytes(frame))
        payload = client.read_frame().payload
        result["v9"] = payload[4:-2].hex()
    return result


@item(ApiVersions=5)
def another_broker(job: Job) -> Any:
    """A broker says that it is not the one that the client wants (KIP-1242): error 129, to all ids but its own."""
    from kafka.protocol.metadata import MetadataRequest

    from proxy.core.wire.messages import api_versions_request

    with RawClient(job.bootstrap.split(",")[0]) as client:
        cluster = client.ask(MetadataRequest(version=9, topics=[])).message
        errors = []
        for node_id in (*(broker.node_id for broker in cluster.brokers), 99):
            client.send(api_versions_request(5, 1, "corpus", cluster_id=cluster.cluster_id, node_id=node_id))
            errors.append(int.from_bytes(client.read_frame().payload[4:6], "big"))
    return sorted(errors)
