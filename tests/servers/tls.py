"""A certificate authority that nobody else trusts, made for one server and thrown away with it."""

from dataclasses import dataclass
from pathlib import Path

from tests.servers.process import HOST


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM form: the authority, the server's certificate and a client's, with their keys."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Issue certificates for 127.0.0.1 and localhost, and one for a client, into `folder`."""
    import trustme  # noqa: PLC0415 # It takes long, and few test runs come here.

    authority = trustme.CA()
    files = Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        server_key=folder / "server.key",
        client=folder / "client.pem",
        client_key=folder / "client.key",
    )
    authority.cert_pem.write_to_path(files.authority)
    server = authority.issue_cert(HOST, "localhost")
    server.cert_chain_pems[0].write_to_path(files.server)
    server.private_key_pem.write_to_path(files.server_key)
    client = authority.issue_cert("client", common_name="client")  # Go wants a name in it too.
    client.cert_chain_pems[0].write_to_path(files.client)
    client.private_key_pem.write_to_path(files.client_key)
    return files
