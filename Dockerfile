# `larder`, and nothing else, for this machine alone: docker build -t larder . && docker run -p 127.0.0.1:11211:11211 -v larder:/data larder
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo xtask dist && mkdir /data

FROM scratch
COPY --from=build /src/target/dist/larder /larder
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
VOLUME /data
EXPOSE 11211
ENTRYPOINT ["/larder"]
CMD ["serve", "--listen", "0.0.0.0:11211", "--store", "file:/data/larder"]
