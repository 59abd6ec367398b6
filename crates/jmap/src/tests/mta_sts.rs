//! The MTA-STS policy.

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use tower::ServiceExt;

use crate::testing::{MTA_STS_POLICY, TestServer, body_of};

#[tokio::test]
async fn the_mta_sts_policy_is_served_for_domains_of_this_server_alone() {
    let server = TestServer::new().await;
    let ask = async |uri: &str, host: &str| {
        let request = Request::get(uri).header(header::HOST, host).body(Body::empty()).unwrap();
        server.router.clone().oneshot(request).await.unwrap()
    };
    let path = "/.well-known/mta-sts.txt";
    for (uri, host) in [
        (path, "mta-sts.example.org"),
        (path, "MTA-STS.Example.org.:443"),
        ("https://mta-sts.example.org/.well-known/mta-sts.txt", "other.example"),
    ] {
        let response = ask(uri, host).await;
        assert_eq!(response.status(), StatusCode::OK, "{host}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(body_of(response).await, MTA_STS_POLICY);
    }
    for host in ["example.org", "mta-sts.example.net", "mta-sts.", "mta-sts.a b", ""] {
        assert_eq!(ask(path, host).await.status(), StatusCode::NOT_FOUND, "{host}");
    }
}
